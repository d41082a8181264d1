// tokenizer.json as the tokenizers package writes it, and what transformers adds from
// tokenizer_config.json.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "models/tokenizer_source.h"

namespace deepinfer {
namespace {

constexpr int64_t kTokensMax = int64_t{1} << 24;
constexpr size_t kStepsMax = 64;

Status Refuse(std::string_view what, std::string_view name, std::string_view supported) {
  return Invalid(Format("tokenizer.json: {} \"{}\" is not supported; supported: {}", what, name,
                        supported))
      .WithParam(std::string(what));
}

Result<TokenId> CheckedId(std::string_view what, const Json& value) {
  const Result<int64_t> id = value.AsInt();
  if (!id.ok() || *id < 0 || *id >= kTokensMax) {
    return Invalid(Format("tokenizer.json: the id of {} is {}; ids are 0 to {}", what, value.Dump(),
                          kTokensMax - 1));
  }
  return static_cast<TokenId>(*id);
}

// Ids may leave holes, but not so many that a small file asks for a huge table.
Status PlaceToken(const std::string& piece, TokenId id, size_t num_entries, TokenizerSpec* spec) {
  const auto index = static_cast<size_t>(id);
  if (index >= 16 * num_entries + 65'536) {
    return Invalid(Format("tokenizer.json: token \"{}\" has id {}, far beyond its {} entries",
                          piece.substr(0, 80), id, num_entries));
  }
  if (index >= spec->vocab.size()) spec->vocab.resize(index + 1);
  if (!spec->vocab[index].empty() && spec->vocab[index] != piece) {
    return Invalid(Format("tokenizer.json: id {} belongs to \"{}\" and to \"{}\"", id,
                          spec->vocab[index].substr(0, 80), piece.substr(0, 80)));
  }
  spec->vocab[index] = piece;
  return {};
}

Status ReadAdded(const Json& json, TokenizerSpec* spec) {
  const Json* list = json.Find("added_tokens");
  if (list == nullptr || list->is_null()) return {};
  if (!list->is_array()) return Invalid("tokenizer.json: added_tokens is not an array");
  const size_t num_entries = spec->vocab.size() + list->items().size();
  spec->added.reserve(list->items().size());
  for (const Json& item : list->items()) {
    AddedToken added;
    DI_ASSIGN(added.content, item.GetString("content", ""));
    if (added.content.empty()) return Invalid("tokenizer.json: an added token has no content");
    const Json* id = item.Find("id");
    if (id == nullptr) {
      return Invalid(Format("tokenizer.json: added token \"{}\" has no id", added.content));
    }
    DI_ASSIGN(added.id, CheckedId("added token \"" + added.content + "\"", *id));
    DI_ASSIGN(added.special, item.GetBool("special", false));
    DI_ASSIGN(added.single_word, item.GetBool("single_word", false));
    DI_ASSIGN(added.lstrip, item.GetBool("lstrip", false));
    DI_ASSIGN(added.rstrip, item.GetBool("rstrip", false));
    DI_ASSIGN(added.normalized, item.GetBool("normalized", !added.special));
    DI_TRY(PlaceToken(added.content, added.id, num_entries, spec));
    spec->added.push_back(std::move(added));
  }
  return {};
}

Status ReadMerges(const Json& model, TokenizerSpec* spec) {
  const Json* merges = model.Find("merges");
  if (merges == nullptr || !merges->is_array()) {
    return Invalid("tokenizer.json: model.merges is missing or not an array");
  }
  spec->merges.reserve(merges->items().size());
  for (const Json& item : merges->items()) {
    if (item.is_array() && item.items().size() == 2 && item.items()[0].is_string() &&
        item.items()[1].is_string()) {
      spec->merges.emplace_back(item.items()[0].string(), item.items()[1].string());
      continue;
    }
    const std::string& text = item.string();
    const size_t space = item.is_string() ? text.find(' ') : std::string::npos;
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
      return Invalid(Format("tokenizer.json: merge {} is {}; two parts are needed",
                            spec->merges.size(), item.Dump().substr(0, 80)));
    }
    spec->merges.emplace_back(text.substr(0, space), text.substr(space + 1));
  }
  return {};
}

Status ReadBpe(const Json& model, TokenizerSpec* spec) {
  spec->model = TokenizerSpec::Model::kBpe;
  const Json* vocab = model.Find("vocab");
  if (vocab == nullptr || !vocab->is_object() || vocab->members().empty()) {
    return Invalid("tokenizer.json: model.vocab is missing, empty or not an object");
  }
  spec->vocab.reserve(vocab->members().size());
  for (const auto& [piece, id] : vocab->members()) {
    DI_ASSIGN(const TokenId token, CheckedId("a token", id));
    DI_TRY(PlaceToken(piece, token, vocab->members().size(), spec));
  }
  DI_TRY(ReadMerges(model, spec));
  for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    DI_ASSIGN(const std::string affix, model.GetString(key, ""));
    if (!affix.empty()) return Refuse(key, affix, "none");
  }
  DI_ASSIGN(const double dropout, model.GetDouble("dropout", 0.0));
  if (dropout != 0.0) return Refuse("dropout", Format("{}", dropout), "0");
  DI_ASSIGN(spec->fuse_unk, model.GetBool("fuse_unk", false));
  DI_ASSIGN(spec->byte_fallback, model.GetBool("byte_fallback", false));
  DI_ASSIGN(spec->ignore_merges, model.GetBool("ignore_merges", false));
  DI_ASSIGN(const std::string unk, model.GetString("unk_token", ""));
  if (!unk.empty()) {
    const Json* id = vocab->Find(unk);
    if (id != nullptr) {
      DI_ASSIGN(spec->unk_id, CheckedId("unk_token", *id));
    }
  }
  return {};
}

Status ReadUnigram(const Json& model, TokenizerSpec* spec) {
  spec->model = TokenizerSpec::Model::kUnigram;
  const Json* vocab = model.Find("vocab");
  if (vocab == nullptr || !vocab->is_array() || vocab->items().empty()) {
    return Invalid("tokenizer.json: model.vocab is missing, empty or not an array");
  }
  spec->vocab.reserve(vocab->items().size());
  spec->scores.reserve(vocab->items().size());
  for (const Json& item : vocab->items()) {
    const bool pair = item.is_array() && item.items().size() == 2 && item.items()[0].is_string();
    const Result<double> score = pair ? item.items()[1].AsDouble() : Result<double>(Status());
    if (!pair || !score.ok()) {
      return Invalid(Format("tokenizer.json: vocab entry {} is {}; [piece, score] is needed",
                            spec->vocab.size(), item.Dump().substr(0, 80)));
    }
    spec->vocab.push_back(item.items()[0].string());
    spec->scores.push_back(static_cast<float>(*score));
  }
  DI_ASSIGN(const int64_t unk, model.GetInt("unk_id", -1));
  if (unk < -1 || unk >= static_cast<int64_t>(spec->vocab.size())) {
    return Invalid(
        Format("tokenizer.json: unk_id is {}; ids are 0 to {}", unk, spec->vocab.size() - 1));
  }
  spec->unk_id = static_cast<TokenId>(unk);
  DI_ASSIGN(spec->byte_fallback, model.GetBool("byte_fallback", false));
  return {};
}

Status ReadModel(const Json& json, TokenizerSpec* spec) {
  const Json* model = json.Find("model");
  if (model == nullptr || !model->is_object()) {
    return Invalid("tokenizer.json: model is missing or not an object");
  }
  DI_ASSIGN(const std::string type,
            model->GetString("type", model->Find("merges") != nullptr ? "BPE" : ""));
  if (type == "BPE") return ReadBpe(*model, spec);
  if (type == "Unigram") return ReadUnigram(*model, spec);
  return Refuse("model type", type, "BPE, Unigram");
}

// Applies `read` to every element of a possibly nested Sequence, in order.
template <typename Read>
Status ForEachStep(const Json& node, std::string_view children, size_t* budget, const Read& read) {
  if (node.is_null()) return {};
  DI_ASSIGN(const std::string type, node.GetString("type", ""));
  if (type != "Sequence") {
    if (*budget == 0) return Invalid(Format("tokenizer.json: more than {} steps", kStepsMax));
    --*budget;
    return read(node, type);
  }
  const Json* list = node.Find(children);
  if (list == nullptr || !list->is_array()) {
    return Invalid(Format("tokenizer.json: a Sequence without {}", children));
  }
  for (const Json& child : list->items()) DI_TRY(ForEachStep(child, children, budget, read));
  return {};
}

template <typename Read>
Status ReadSteps(const Json& json, std::string_view key, std::string_view children,
                 const Read& read) {
  const Json* node = json.Find(key);
  if (node == nullptr) return {};
  size_t budget = kStepsMax;
  return ForEachStep(*node, children, &budget, read);
}

// {"String": text} or {"Regex": text}.
struct Pattern {
  std::string text;
  bool is_regex = false;
};
Result<Pattern> ReadPattern(const Json& node) {
  const Json* pattern = node.Find("pattern");
  if (pattern != nullptr && pattern->is_object()) {
    for (const std::string_view key : {"String", "Regex"}) {
      const Json* text = pattern->Find(key);
      if (text != nullptr && text->is_string()) return Pattern{text->string(), key == "Regex"};
    }
  }
  return Invalid("tokenizer.json: a pattern must be {\"String\": ...} or {\"Regex\": ...}");
}

Status ReadNormalizer(const Json& node, const std::string& type, TokenizerSpec* spec) {
  using Kind = NormalizerStep::Kind;
  static constexpr std::array<std::pair<std::string_view, Kind>, 9> kKinds = {{
      {"NFC", Kind::kNfc},
      {"NFD", Kind::kNfd},
      {"NFKC", Kind::kNfkc},
      {"NFKD", Kind::kNfkd},
      {"Lowercase", Kind::kLowercase},
      {"StripAccents", Kind::kStripAccents},
      {"Strip", Kind::kStrip},
      {"Replace", Kind::kReplace},
      {"Prepend", Kind::kPrepend},
  }};
  const auto* row = std::find_if(kKinds.begin(), kKinds.end(),
                                 [&type](const auto& r) { return r.first == type; });
  if (row == kKinds.end()) {
    return Refuse("normalizer", type,
                  "NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, "
                  "Replace, Prepend, Sequence");
  }
  NormalizerStep step;
  step.kind = row->second;
  if (step.kind == Kind::kStrip) {
    DI_ASSIGN(step.left, node.GetBool("strip_left", true));
    DI_ASSIGN(step.right, node.GetBool("strip_right", true));
  } else if (step.kind == Kind::kReplace) {
    DI_ASSIGN(Pattern pattern, ReadPattern(node));
    if (pattern.is_regex) return Refuse("Replace with Regex", pattern.text, "Replace with String");
    step.pattern = std::move(pattern.text);
    DI_ASSIGN(step.content, node.GetString("content", ""));
  } else if (step.kind == Kind::kPrepend) {
    DI_ASSIGN(step.content, node.GetString("prepend", ""));
  }
  spec->normalizers.push_back(std::move(step));
  return {};
}

Result<PreTokenizerStep::Behavior> ReadBehavior(const Json& node) {
  using Behavior = PreTokenizerStep::Behavior;
  DI_ASSIGN(const std::string name, node.GetString("behavior", "Isolated"));
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  return Refuse("behavior", name,
                "Isolated, Removed, MergedWithPrevious, MergedWithNext, Contiguous");
}

Status ReadMetaspace(const Json& node, PreTokenizerStep* step) {
  using Prepend = PreTokenizerStep::Prepend;
  DI_ASSIGN(step->replacement, node.GetString("replacement", step->replacement));
  DI_ASSIGN(step->split, node.GetBool("split", true));
  DI_ASSIGN(const bool add_prefix, node.GetBool("add_prefix_space", true));
  DI_ASSIGN(const std::string scheme,
            node.GetString("prepend_scheme", add_prefix ? "always" : "never"));
  if (scheme == "always") {
    step->prepend = Prepend::kAlways;
  } else if (scheme == "first") {
    step->prepend = Prepend::kFirst;
  } else if (scheme == "never") {
    step->prepend = Prepend::kNever;
  } else {
    return Refuse("prepend_scheme", scheme, "always, first, never");
  }
  return {};
}

Status ReadPreTokenizer(const Json& node, const std::string& type, TokenizerSpec* spec) {
  using Kind = PreTokenizerStep::Kind;
  PreTokenizerStep step;
  if (type == "Split") {
    step.kind = Kind::kSplit;
    DI_ASSIGN(Pattern pattern, ReadPattern(node));
    step.pattern = std::move(pattern.text);
    step.pattern_is_regex = pattern.is_regex;
    DI_ASSIGN(step.behavior, ReadBehavior(node));
    DI_ASSIGN(step.invert, node.GetBool("invert", false));
  } else if (type == "ByteLevel") {
    step.kind = Kind::kByteLevel;
    DI_ASSIGN(step.add_prefix_space, node.GetBool("add_prefix_space", true));
    DI_ASSIGN(step.use_regex, node.GetBool("use_regex", true));
  } else if (type == "Digits") {
    step.kind = Kind::kDigits;
    DI_ASSIGN(step.individual_digits, node.GetBool("individual_digits", false));
  } else if (type == "Metaspace") {
    step.kind = Kind::kMetaspace;
    DI_TRY(ReadMetaspace(node, &step));
  } else if (type == "Punctuation") {
    step.kind = Kind::kPunctuation;
    DI_ASSIGN(step.behavior, ReadBehavior(node));
  } else if (type == "Whitespace") {
    step.kind = Kind::kWhitespace;
  } else if (type == "WhitespaceSplit") {
    step.kind = Kind::kWhitespaceSplit;
  } else {
    return Refuse("pre_tokenizer", type,
                  "Split, ByteLevel, Digits, Metaspace, Punctuation, "
                  "Whitespace, WhitespaceSplit, Sequence");
  }
  spec->pre_tokenizers.push_back(std::move(step));
  return {};
}

Status ReadDecoder(const Json& node, const std::string& type, TokenizerSpec* spec) {
  using Kind = DecoderStep::Kind;
  DecoderStep step;
  if (type == "ByteLevel") {
    step.kind = Kind::kByteLevel;
  } else if (type == "ByteFallback") {
    step.kind = Kind::kByteFallback;
  } else if (type == "Fuse") {
    step.kind = Kind::kFuse;
  } else if (type == "Replace") {
    step.kind = Kind::kReplace;
    DI_ASSIGN(Pattern pattern, ReadPattern(node));
    if (pattern.is_regex) return Refuse("Replace with Regex", pattern.text, "Replace with String");
    step.pattern = std::move(pattern.text);
    DI_ASSIGN(step.content, node.GetString("content", ""));
  } else if (type == "Strip") {
    step.kind = Kind::kStrip;
    DI_ASSIGN(step.content, node.GetString("content", " "));
    constexpr int64_t kStripMax = 1'024;
    DI_ASSIGN(const int64_t start, node.GetInt("start", 0));
    DI_ASSIGN(const int64_t stop, node.GetInt("stop", 0));
    if (start < 0 || start > kStripMax || stop < 0 || stop > kStripMax) {
      return Invalid(Format("tokenizer.json: Strip of {} and {}; 0 to {} are allowed", start, stop,
                            kStripMax));
    }
    step.start = static_cast<int>(start);
    step.stop = static_cast<int>(stop);
  } else if (type == "Metaspace") {
    step.kind = Kind::kMetaspace;
    PreTokenizerStep shared;
    DI_TRY(ReadMetaspace(node, &shared));
    step.replacement = shared.replacement;
    step.strip_leading = shared.prepend != PreTokenizerStep::Prepend::kNever;
  } else if (type == "BPEDecoder") {
    step.kind = Kind::kBpe;
    DI_ASSIGN(step.pattern, node.GetString("suffix", "</w>"));
  } else {
    return Refuse("decoder", type,
                  "ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace, BPEDecoder, Sequence");
  }
  spec->decoders.push_back(std::move(step));
  return {};
}

// The ids of one special token of a template.
Status AppendTemplateToken(const Json& processor, const std::string& name,
                           std::vector<TokenId>* out) {
  const Json* table = processor.Find("special_tokens");
  const Json* row = table == nullptr ? nullptr : table->Find(name);
  const Json* ids = row == nullptr ? nullptr : row->Find("ids");
  if (ids == nullptr || !ids->is_array()) {
    return Invalid(Format("tokenizer.json: the post-processor uses \"{}\" without its ids", name));
  }
  for (const Json& item : ids->items()) {
    DI_ASSIGN(const TokenId id, CheckedId("\"" + name + "\"", item));
    out->push_back(id);
  }
  return {};
}

Status ReadTemplate(const Json& processor, TokenizerSpec* spec) {
  const Json* single = processor.Find("single");
  if (single == nullptr || !single->is_array()) {
    return Invalid("tokenizer.json: TemplateProcessing.single must be a list of pieces");
  }
  bool seen_text = false;
  for (const Json& piece : single->items()) {
    if (piece.Find("Sequence") != nullptr) {
      seen_text = true;
      continue;
    }
    const Json* special = piece.Find("SpecialToken");
    if (special == nullptr) return Invalid("tokenizer.json: an unknown piece in a template");
    DI_ASSIGN(const std::string name, special->GetString("id", ""));
    DI_TRY(AppendTemplateToken(processor, name, seen_text ? &spec->suffix_ids : &spec->prefix_ids));
  }
  return {};
}

// ["<s>", 0] of RobertaProcessing and BertProcessing.
Status AppendPairId(const Json& processor, std::string_view key, std::vector<TokenId>* out) {
  const Json* pair = processor.Find(key);
  if (pair == nullptr || !pair->is_array() || pair->items().size() != 2) {
    return Invalid(Format("tokenizer.json: post_processor.{} must be [text, id]", key));
  }
  DI_ASSIGN(const TokenId id, CheckedId(key, pair->items()[1]));
  out->push_back(id);
  return {};
}

Status ReadPostProcessor(const Json& node, const std::string& type, TokenizerSpec* spec) {
  if (type == "ByteLevel") return {};  // moves offsets only
  if (type == "TemplateProcessing") return ReadTemplate(node, spec);
  if (type == "RobertaProcessing" || type == "BertProcessing") {
    DI_TRY(AppendPairId(node, "cls", &spec->prefix_ids));
    return AppendPairId(node, "sep", &spec->suffix_ids);
  }
  return Refuse("post_processor", type,
                "ByteLevel, TemplateProcessing, RobertaProcessing, BertProcessing, Sequence");
}

// "text", {"content": "text"} or null.
std::string TokenText(const Json& config, std::string_view key) {
  const Json* value = config.Find(key);
  if (value == nullptr) return {};
  if (value->is_string()) return value->string();
  const Json* content = value->is_object() ? value->Find("content") : nullptr;
  return content != nullptr && content->is_string() ? content->string() : std::string();
}

TokenId FindToken(const TokenizerSpec& spec, const std::string& text) {
  if (text.empty()) return -1;
  for (const AddedToken& added : spec.added) {
    if (added.content == text) return added.id;
  }
  const auto found = std::find(spec.vocab.begin(), spec.vocab.end(), text);
  return found == spec.vocab.end() ? -1 : static_cast<TokenId>(found - spec.vocab.begin());
}

}  // namespace

Result<TokenizerSpec> ParseTokenizerJson(std::string_view text) {
  const Result<Json> parsed = Json::Parse(text);
  if (!parsed.ok()) return Invalid("tokenizer.json: " + parsed.status().message());
  const Json& json = *parsed;
  if (!json.is_object()) return Invalid("tokenizer.json is not a JSON object");
  TokenizerSpec spec;
  DI_TRY(ReadModel(json, &spec));
  DI_TRY(ReadAdded(json, &spec));
  const auto with_spec = [&spec](auto read) {
    return [&spec, read](const Json& node, const std::string& type) {
      return read(node, type, &spec);
    };
  };
  DI_TRY(ReadSteps(json, "normalizer", "normalizers", with_spec(ReadNormalizer)));
  DI_TRY(ReadSteps(json, "pre_tokenizer", "pretokenizers", with_spec(ReadPreTokenizer)));
  DI_TRY(ReadSteps(json, "decoder", "decoders", with_spec(ReadDecoder)));
  DI_TRY(ReadSteps(json, "post_processor", "processors", with_spec(ReadPostProcessor)));
  for (const std::vector<TokenId>* ids : {&spec.prefix_ids, &spec.suffix_ids}) {
    for (const TokenId id : *ids) {
      if (static_cast<size_t>(id) >= spec.vocab.size()) {
        return Invalid(Format("tokenizer.json: the post-processor adds id {}; ids are 0 to {}", id,
                              spec.vocab.size() - 1));
      }
    }
  }
  return spec;
}

Status ApplyTokenizerConfig(const Json& tokenizer_config, TokenizerSpec* spec) {
  spec->bos_id = FindToken(*spec, TokenText(tokenizer_config, "bos_token"));
  spec->eos_id = FindToken(*spec, TokenText(tokenizer_config, "eos_token"));
  spec->pad_id = FindToken(*spec, TokenText(tokenizer_config, "pad_token"));
  // LlamaTokenizer rebuilds its post-processor from these two fields.
  DI_ASSIGN(const std::string name, tokenizer_config.GetString("tokenizer_class", ""));
  if (name != "LlamaTokenizer" && name != "LlamaTokenizerFast") return {};
  DI_ASSIGN(const bool add_bos, tokenizer_config.GetBool("add_bos_token", true));
  DI_ASSIGN(const bool add_eos, tokenizer_config.GetBool("add_eos_token", false));
  spec->prefix_ids.clear();
  spec->suffix_ids.clear();
  if (add_bos && spec->bos_id >= 0) spec->prefix_ids.push_back(spec->bos_id);
  if (add_eos && spec->eos_id >= 0) spec->suffix_ids.push_back(spec->eos_id);
  return {};
}

Result<std::string> ChatTemplateOf(const Json& tokenizer_config) {
  const Json* value = tokenizer_config.Find("chat_template");
  if (value == nullptr || value->is_null()) return std::string();
  if (value->is_string()) return value->string();
  if (value->is_array()) {
    for (const Json& item : value->items()) {
      DI_ASSIGN(const std::string name, item.GetString("name", ""));
      if (name == "default") return item.GetString("template", "");
    }
    return std::string();
  }
  return Invalid(
      "tokenizer_config.json: chat_template is neither a string nor a list of named "
      "templates");
}

}  // namespace deepinfer
