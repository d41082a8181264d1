#include "text/reference_data.h"

#include <cstdio>
#include <cstring>

#include "base/check.h"
#include "base/format.h"
#include "text/unicode.h"

namespace deepinfer {
namespace {

constexpr uint64_t kFnvPrime = 0x100000001B3U;

const Json& At(const Json& json, std::string_view key) {
  const Json* found = json.Find(key);
  DI_CHECK(found != nullptr, "reference data lacks {}", key);
  return *found;
}

std::string Text(const Json& json, std::string_view key) { return json.GetString(key, "").value(); }
bool Flag(const Json& json, std::string_view key, bool fallback) {
  return json.GetBool(key, fallback).value();
}
int Number(const Json& json, std::string_view key) {
  return static_cast<int>(json.GetInt(key, 0).value());
}

// The steps of `json`, sequences flattened.
void Flatten(const Json& json, std::vector<const Json*>* steps) {
  if (json.is_null()) return;
  if (Text(json, "type") != "Sequence") {
    steps->push_back(&json);
    return;
  }
  for (const auto& [key, value] : json.members()) {
    if (!value.is_array()) continue;
    for (const Json& step : value.items()) Flatten(step, steps);
  }
}

// {"Regex": p} or {"String": p}
std::string PatternOf(const Json& step, bool* is_regex) {
  const auto& member = At(step, "pattern").members().front();
  *is_regex = member.first == "Regex";
  return member.second.string();
}

PreTokenizerStep::Behavior BehaviorOf(const std::string& name) {
  using Behavior = PreTokenizerStep::Behavior;
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  return Behavior::kIsolated;
}

class BinaryReader {
 public:
  explicit BinaryReader(std::string_view data) : data_(data) {}
  std::string_view Take(size_t size) {
    DI_CHECK(size <= data_.size(), "reference data ends early");
    const std::string_view taken = data_.substr(0, size);
    data_.remove_prefix(size);
    return taken;
  }
  size_t Varint() {
    size_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<uint8_t>(Take(1)[0]);
      value |= static_cast<size_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
  }
  template <typename T>
  T Plain() {
    T value;
    std::memcpy(&value, Take(sizeof(T)).data(), sizeof(T));
    return value;
  }

 private:
  std::string_view data_;
};

void ReadVocabulary(const Json& model, BinaryReader* reader, TokenizerSpec* spec) {
  spec->vocab.resize(static_cast<size_t>(Number(model, "vocab_count")));
  for (std::string& piece : spec->vocab) {
    piece = reader->Take(reader->Varint());
    if (spec->model == TokenizerSpec::Model::kUnigram) {
      spec->scores.push_back(reader->Plain<float>());
    }
  }
  spec->merges.resize(static_cast<size_t>(Number(model, "merge_count")));
  size_t expected = 0;
  for (auto& [left, right] : spec->merges) {
    left = spec->vocab.at(reader->Varint());
    right = spec->vocab.at(reader->Varint());
    const auto step = static_cast<int64_t>(reader->Varint());
    const int64_t delta = step % 2 == 0 ? step / 2 : -(step + 1) / 2;
    const auto merged = static_cast<size_t>(static_cast<int64_t>(expected) + delta);
    spec->vocab.at(merged) = left + right;
    expected = merged + 1;
  }
}

void AppendLines(const Json& source, ReferenceRng* rng, std::string* out) {
  const std::vector<Json>& lines = source.items();
  const size_t start = rng->Below(lines.size());
  const size_t count = 1 + rng->Below(4);
  for (size_t i = 0; i < count; ++i) {
    *out += lines[(start + i) % lines.size()].string();
    *out += '\n';
  }
}

const std::string& Pick(const Json& list, ReferenceRng* rng) {
  return list.items()[rng->Below(list.items().size())].string();
}

void AppendCharacter(const Json& range, ReferenceRng* rng, std::string* out) {
  const auto low = static_cast<uint64_t>(range.items()[0].AsInt().value());
  const auto high = static_cast<uint64_t>(range.items()[1].AsInt().value());
  AppendCodePoint(static_cast<char32_t>(low + rng->Below(high - low + 1)), out);
}

}  // namespace

uint64_t ReferenceRng::Below(uint64_t n) {
  state_ += 0x9E3779B97F4A7C15U;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return (z ^ (z >> 31)) % n;
}

std::string ReadReferenceFile(const std::string& name) {
  const std::string path = "tests/tokenizer/" + name;
  std::FILE* file = std::fopen(path.c_str(), "rb");
  DI_CHECK(file != nullptr, "{} cannot be read; run from the repository's root", path);
  std::string data;
  char buffer[65536];
  for (size_t n = 0; (n = std::fread(buffer, 1, sizeof(buffer), file)) > 0;) data.append(buffer, n);
  std::fclose(file);
  return data;
}

Json ReadReferenceJson(const std::string& name) {
  Result<Json> json = Json::Parse(ReadReferenceFile(name));
  DI_CHECK(json.ok(), "{}: {}", name, json.status().message());
  return std::move(json).value();
}

TokenizerSpec ReadReferenceSpec(const std::string& name) {
  const std::string data = ReadReferenceFile(name + ".tok");
  BinaryReader reader(data);
  const Result<Json> parsed = Json::Parse(reader.Take(reader.Plain<uint32_t>()));
  DI_CHECK(parsed.ok(), "{}: {}", name, parsed.status().message());
  const Json& json = parsed.value();
  const Json& model = At(json, "model");
  TokenizerSpec spec;
  if (Text(model, "type") == "Unigram") {
    spec.model = TokenizerSpec::Model::kUnigram;
    spec.unk_id = static_cast<TokenId>(model.GetInt("unk_id", -1).value());
  }
  spec.byte_fallback = Flag(model, "byte_fallback", false);
  spec.ignore_merges = Flag(model, "ignore_merges", false);
  spec.fuse_unk = Flag(model, "fuse_unk", false);
  ReadVocabulary(model, &reader, &spec);
  if (const std::string unk = Text(model, "unk_token"); !unk.empty()) {
    for (size_t id = 0; id < spec.vocab.size(); ++id) {
      if (spec.vocab[id] == unk) spec.unk_id = static_cast<TokenId>(id);
    }
  }
  for (const Json& token : At(json, "added_tokens").items()) {
    spec.added.push_back({Number(token, "id"), Text(token, "content"),
                          Flag(token, "special", false), Flag(token, "single_word", false),
                          Flag(token, "lstrip", false), Flag(token, "rstrip", false),
                          Flag(token, "normalized", false)});
  }
  spec.normalizers = NormalizerStepsOf(At(json, "normalizer"));
  spec.pre_tokenizers = PreTokenizerStepsOf(At(json, "pre_tokenizer"));
  spec.decoders = DecoderStepsOf(At(json, "decoder"));
  return spec;
}

std::vector<PreTokenizerStep> PreTokenizerStepsOf(const Json& json) {
  using Kind = PreTokenizerStep::Kind;
  std::vector<const Json*> sources;
  Flatten(json, &sources);
  std::vector<PreTokenizerStep> steps;
  for (const Json* source : sources) {
    PreTokenizerStep step;
    const std::string type = Text(*source, "type");
    step.behavior = BehaviorOf(Text(*source, "behavior"));
    step.invert = Flag(*source, "invert", false);
    if (type == "Split") step.pattern = PatternOf(*source, &step.pattern_is_regex);
    step.kind = type == "Split"         ? Kind::kSplit
                : type == "ByteLevel"   ? Kind::kByteLevel
                : type == "Digits"      ? Kind::kDigits
                : type == "Metaspace"   ? Kind::kMetaspace
                : type == "Punctuation" ? Kind::kPunctuation
                : type == "Whitespace"  ? Kind::kWhitespace
                                        : Kind::kWhitespaceSplit;
    step.add_prefix_space = Flag(*source, "add_prefix_space", true);
    step.use_regex = Flag(*source, "use_regex", true);
    step.individual_digits = Flag(*source, "individual_digits", false);
    const std::string scheme = Text(*source, "prepend_scheme");
    step.prepend = scheme == "first"   ? PreTokenizerStep::Prepend::kFirst
                   : scheme == "never" ? PreTokenizerStep::Prepend::kNever
                                       : PreTokenizerStep::Prepend::kAlways;
    step.split = Flag(*source, "split", true);
    steps.push_back(std::move(step));
  }
  return steps;
}

std::vector<NormalizerStep> NormalizerStepsOf(const Json& json) {
  using Kind = NormalizerStep::Kind;
  std::vector<const Json*> sources;
  Flatten(json, &sources);
  std::vector<NormalizerStep> steps;
  for (const Json* source : sources) {
    NormalizerStep step;
    const std::string type = Text(*source, "type");
    step.kind = type == "NFC"         ? Kind::kNfc
                : type == "NFD"       ? Kind::kNfd
                : type == "NFKC"      ? Kind::kNfkc
                : type == "NFKD"      ? Kind::kNfkd
                : type == "Lowercase" ? Kind::kLowercase
                : type == "Strip"     ? Kind::kStrip
                : type == "Replace"   ? Kind::kReplace
                                      : Kind::kPrepend;
    bool is_regex = false;
    if (type == "Replace") step.pattern = PatternOf(*source, &is_regex);
    step.content = Text(*source, type == "Prepend" ? "prepend" : "content");
    step.left = Flag(*source, "strip_left", true);
    step.right = Flag(*source, "strip_right", true);
    steps.push_back(std::move(step));
  }
  return steps;
}

std::vector<DecoderStep> DecoderStepsOf(const Json& json) {
  using Kind = DecoderStep::Kind;
  std::vector<const Json*> sources;
  Flatten(json, &sources);
  std::vector<DecoderStep> steps;
  for (const Json* source : sources) {
    DecoderStep step;
    const std::string type = Text(*source, "type");
    step.kind = type == "ByteLevel"      ? Kind::kByteLevel
                : type == "ByteFallback" ? Kind::kByteFallback
                : type == "Fuse"         ? Kind::kFuse
                : type == "Replace"      ? Kind::kReplace
                : type == "Strip"        ? Kind::kStrip
                                         : Kind::kMetaspace;
    bool is_regex = false;
    if (type == "Replace") step.pattern = PatternOf(*source, &is_regex);
    step.content = Text(*source, "content");
    step.start = Number(*source, "start");
    step.stop = Number(*source, "stop");
    step.strip_leading = Text(*source, "prepend_scheme") != "never";
    steps.push_back(std::move(step));
  }
  return steps;
}

std::string MixedText(const Json& mix, uint64_t seed, size_t size) {
  constexpr std::string_view kTails[] = {"", " ", "\n", ""};
  struct Kind {
    std::string_view name;
    uint64_t most;
  };
  constexpr Kind kRest[] = {
      {"spaces", 6}, {"digits", 16}, {"bits", 5}, {"emoji", 5}, {"specials", 2}};
  ReferenceRng rng(seed);
  const Json* sources[] = {&At(mix, "texts"), &At(mix, "texts"),     &At(mix, "code"),
                           &At(mix, "data"),  &At(mix, "languages"), &At(mix, "languages")};
  const std::vector<Json>& ranges = At(mix, "ranges").items();
  std::string out;
  while (out.size() < size) {
    const uint64_t kind = rng.Below(20);
    if (kind < 9) {
      AppendLines(*sources[rng.Below(6)], &rng, &out);
    } else if (kind < 12) {
      const Json& source = *sources[rng.Below(6)];
      for (uint64_t left = 1 + rng.Below(20); left > 0; --left) {
        const std::vector<std::string_view> words = SplitText(Pick(source, &rng), " ");
        out += words[rng.Below(words.size())];
        out += Pick(At(mix, "joins"), &rng);
      }
    } else if (kind < 14) {
      const Json& range = ranges[rng.Below(ranges.size())];
      for (uint64_t left = 1 + rng.Below(24); left > 0; --left) AppendCharacter(range, &rng, &out);
    } else if (kind == 14) {
      for (uint64_t left = 1 + rng.Below(16); left > 0; --left) {
        AppendCharacter(ranges[rng.Below(ranges.size())], &rng, &out);
      }
    } else {
      const Kind& rest = kRest[kind - 15];
      for (uint64_t left = 1 + rng.Below(rest.most); left > 0; --left) {
        out += Pick(At(mix, rest.name), &rng);
      }
    }
    out += kTails[rng.Below(4)];
  }
  return out;
}

std::string HashOfIds(std::span<const TokenId> ids) {
  uint64_t value = 0xCBF29CE484222325U;
  for (const TokenId id : ids) value = (value ^ static_cast<uint32_t>(id)) * kFnvPrime;
  return Format("{:016x}", value);
}

void TextsHash::Add(std::string_view text) {
  for (const char c : text) value_ = (value_ ^ static_cast<uint8_t>(c)) * kFnvPrime;
  value_ = (value_ ^ 0xFFU) * kFnvPrime;
}

std::string TextsHash::Hex() const { return Format("{:016x}", value_); }

std::vector<std::string_view> SplitText(std::string_view text, std::string_view separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + separator.size());
  }
}

}  // namespace deepinfer
