// tokenizer.ggml.* of GGUF: vocabulary, merges or scores, token types, and the pre-tokenizer that
// the file names instead of describing.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "models/tokenizer_source.h"

namespace deepinfer {
namespace {

constexpr size_t kTokensMax = size_t{1} << 24;

// tokenizer.ggml.token_type.
enum class TokenType : int32_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|)"
    R"( ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDeepSeekCjk =
    "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F"
    "\xE3\x82\xA0-\xE3\x83\xBF]+";
constexpr std::string_view kDeepSeekMain =
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?"
    "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";

enum class PreStyle { kDefault, kGpt2, kDigitsGpt2, kLlama3, kQwen2, kQwen35, kDeepSeekV3 };

struct PreRow {
  std::string_view name;
  PreStyle style;
  bool ignore_merges = false;
  bool add_bos = false;  // when the file does not say
  bool nfc = false;
};

// The first row of a style is the name that is written for it.
constexpr std::array kPreRows = {
    PreRow{"default", PreStyle::kDefault},
    PreRow{"gpt-2", PreStyle::kGpt2},
    PreRow{"phi-2", PreStyle::kGpt2},
    PreRow{"mpt", PreStyle::kGpt2},
    PreRow{"olmo", PreStyle::kGpt2},
    PreRow{"smollm", PreStyle::kDigitsGpt2},
    PreRow{"starcoder", PreStyle::kDigitsGpt2},
    PreRow{"refact", PreStyle::kDigitsGpt2},
    PreRow{"codeshell", PreStyle::kDigitsGpt2},
    PreRow{"llama-bpe", PreStyle::kLlama3, true, true},
    PreRow{"llama3", PreStyle::kLlama3, true, true},
    PreRow{"llama-v3", PreStyle::kLlama3, true, true},
    PreRow{"dbrx", PreStyle::kLlama3},
    PreRow{"smaug-bpe", PreStyle::kLlama3},
    PreRow{"qwen2", PreStyle::kQwen2, false, false, true},
    PreRow{"deepseek-r1-qwen", PreStyle::kQwen2, false, false, true},
    PreRow{"stablelm2", PreStyle::kQwen2, false, false, true},
    PreRow{"qwen35", PreStyle::kQwen35, false, false, true},
    PreRow{"deepseek-v3", PreStyle::kDeepSeekV3},
};

PreTokenizerStep Split(std::string_view pattern) {
  PreTokenizerStep step;
  step.kind = PreTokenizerStep::Kind::kSplit;
  step.pattern = std::string(pattern);
  return step;
}

PreTokenizerStep ByteLevel(bool use_regex) {
  PreTokenizerStep step;
  step.kind = PreTokenizerStep::Kind::kByteLevel;
  step.use_regex = use_regex;
  return step;
}

std::vector<PreTokenizerStep> StepsOf(PreStyle style) {
  switch (style) {
    case PreStyle::kDefault:
      return {Split(R"([\p{P}\$\+<=>\^~\|]+)"), Split(kGpt2Pattern), Split(R"(\p{N}+)"),
              Split("[0-9][0-9][0-9]"), ByteLevel(false)};
    case PreStyle::kGpt2:
      return {ByteLevel(true)};
    case PreStyle::kDigitsGpt2: {
      PreTokenizerStep digits;
      digits.kind = PreTokenizerStep::Kind::kDigits;
      digits.individual_digits = true;
      return {digits, ByteLevel(true)};
    }
    case PreStyle::kLlama3:
      return {Split(kLlama3Pattern), ByteLevel(false)};
    case PreStyle::kQwen2:
      return {Split(kQwen2Pattern), ByteLevel(false)};
    case PreStyle::kQwen35:
      return {Split(kQwen35Pattern), ByteLevel(false)};
    case PreStyle::kDeepSeekV3:
      return {Split(R"(\p{N}{1,3})"), Split(kDeepSeekCjk), Split(kDeepSeekMain), ByteLevel(false)};
  }
  return {};
}

bool SameStep(const PreTokenizerStep& a, const PreTokenizerStep& b) {
  return a.kind == b.kind && a.pattern == b.pattern && a.pattern_is_regex == b.pattern_is_regex &&
         a.behavior == b.behavior && a.invert == b.invert &&
         a.add_prefix_space == b.add_prefix_space && a.use_regex == b.use_regex &&
         a.individual_digits == b.individual_digits;
}

Result<const PreRow*> FindPre(std::string_view name) {
  std::string known;
  for (const PreRow& row : kPreRows) {
    if (row.name == name) return &row;
    known += Format("{}{}", known.empty() ? "" : ", ", row.name);
  }
  return Invalid(
             Format("tokenizer.ggml.pre is \"{}\", which is not known; known pre-tokenizers: {}",
                    name, known))
      .WithParam("tokenizer.ggml.pre");
}

Result<TokenId> IdOf(const GgufMetadata& metadata, std::string_view key, size_t vocab) {
  DI_ASSIGN(const int64_t id, metadata.GetInt(key, -1));
  if (id == -1 || id == int64_t{0xFFFFFFFF}) return TokenId{-1};
  if (id < 0 || static_cast<uint64_t>(id) >= vocab) {
    return Invalid(Format("{} is {}; token ids are 0 to {}", key, id, vocab - 1))
        .WithParam(std::string(key));
  }
  return static_cast<TokenId>(id);
}

Status ReadVocabulary(const GgufMetadata& metadata, TokenizerSpec* spec) {
  DI_ASSIGN(const std::vector<std::string_view> tokens,
            metadata.GetStrings("tokenizer.ggml.tokens"));
  if (tokens.empty() || tokens.size() > kTokensMax) {
    return Invalid(Format("tokenizer.ggml.tokens has {} entries; 1 to {} are supported",
                          tokens.size(), kTokensMax))
        .WithParam("tokenizer.ggml.tokens");
  }
  spec->vocab.assign(tokens.begin(), tokens.end());
  DI_ASSIGN(const std::vector<int32_t> types, metadata.GetInts("tokenizer.ggml.token_type"));
  if (!types.empty() && types.size() != tokens.size()) {
    return Invalid(Format("tokenizer.ggml.token_type has {} entries for {} tokens", types.size(),
                          tokens.size()))
        .WithParam("tokenizer.ggml.token_type");
  }
  for (size_t id = 0; id < types.size(); ++id) {
    const auto type = static_cast<TokenType>(types[id]);
    const bool special = type == TokenType::kControl || type == TokenType::kUnknown;
    if ((!special && type != TokenType::kUserDefined) || tokens[id].empty()) continue;
    AddedToken added;
    added.id = static_cast<TokenId>(id);
    added.content = std::string(tokens[id]);
    added.special = special;
    spec->added.push_back(std::move(added));
  }
  return {};
}

Status ReadIds(const GgufMetadata& metadata, bool add_bos_default, TokenizerSpec* spec) {
  const size_t vocab = spec->vocab.size();
  DI_ASSIGN(spec->bos_id, IdOf(metadata, "tokenizer.ggml.bos_token_id", vocab));
  DI_ASSIGN(spec->eos_id, IdOf(metadata, "tokenizer.ggml.eos_token_id", vocab));
  DI_ASSIGN(spec->pad_id, IdOf(metadata, "tokenizer.ggml.padding_token_id", vocab));
  DI_ASSIGN(spec->unk_id, IdOf(metadata, "tokenizer.ggml.unknown_token_id", vocab));
  DI_ASSIGN(const bool add_bos, metadata.GetBool("tokenizer.ggml.add_bos_token", add_bos_default));
  DI_ASSIGN(const bool add_eos, metadata.GetBool("tokenizer.ggml.add_eos_token", false));
  if (add_bos && spec->bos_id >= 0) spec->prefix_ids.push_back(spec->bos_id);
  if (add_eos && spec->eos_id >= 0) spec->suffix_ids.push_back(spec->eos_id);
  return {};
}

Status ReadByteLevel(const GgufMetadata& metadata, TokenizerSpec* spec) {
  DI_ASSIGN(const std::string_view pre, metadata.GetString("tokenizer.ggml.pre", "default"));
  DI_ASSIGN(const PreRow* row, FindPre(pre));
  spec->pre_tokenizers = StepsOf(row->style);
  spec->ignore_merges = row->ignore_merges;
  if (row->nfc) spec->normalizers.push_back({});
  spec->decoders.push_back({});
  DI_ASSIGN(const std::vector<std::string_view> merges,
            metadata.GetStrings("tokenizer.ggml.merges"));
  if (merges.empty()) {
    return Invalid("tokenizer.ggml.merges is missing or empty; a gpt2 tokenizer needs it")
        .WithParam("tokenizer.ggml.merges");
  }
  spec->merges.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    const size_t space = merges[i].find(' ', 1);  // a part may itself begin with a space
    if (space == std::string_view::npos || space + 1 == merges[i].size()) {
      return Invalid(
                 Format("tokenizer.ggml.merges entry {} is not two parts with a space between", i))
          .WithParam("tokenizer.ggml.merges");
    }
    spec->merges.emplace_back(merges[i].substr(0, space), merges[i].substr(space + 1));
  }
  DI_TRY(ReadIds(metadata, row->add_bos, spec));
  spec->unk_id = -1;  // every byte has a token
  return {};
}

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

Status ReadSentencePiece(const GgufMetadata& metadata, TokenizerSpec* spec) {
  DI_ASSIGN(spec->scores, metadata.GetFloats("tokenizer.ggml.scores"));
  if (spec->scores.size() != spec->vocab.size()) {
    return Invalid(Format("tokenizer.ggml.scores has {} entries for {} tokens", spec->scores.size(),
                          spec->vocab.size()))
        .WithParam("tokenizer.ggml.scores");
  }
  for (size_t i = 0; i < spec->scores.size(); ++i) {
    if (!std::isfinite(spec->scores[i])) {
      return Invalid(Format("tokenizer.ggml.scores entry {} is {}", i, spec->scores[i]))
          .WithParam("tokenizer.ggml.scores");
    }
  }
  spec->byte_fallback = true;
  spec->fuse_unk = true;
  DI_ASSIGN(const bool prefix, metadata.GetBool("tokenizer.ggml.add_space_prefix", true));
  if (prefix) {
    NormalizerStep prepend;
    prepend.kind = NormalizerStep::Kind::kPrepend;
    prepend.content = std::string(kSpaceMark);
    spec->normalizers.push_back(std::move(prepend));
  }
  NormalizerStep spaces;
  spaces.kind = NormalizerStep::Kind::kReplace;
  spaces.pattern = " ";
  spaces.content = std::string(kSpaceMark);
  spec->normalizers.push_back(std::move(spaces));

  DecoderStep marks;
  marks.kind = DecoderStep::Kind::kReplace;
  marks.pattern = std::string(kSpaceMark);
  marks.content = " ";
  DecoderStep bytes;
  bytes.kind = DecoderStep::Kind::kByteFallback;
  DecoderStep fuse;
  fuse.kind = DecoderStep::Kind::kFuse;
  spec->decoders = {std::move(marks), std::move(bytes), std::move(fuse)};
  if (prefix) {
    DecoderStep strip;
    strip.kind = DecoderStep::Kind::kStrip;
    strip.content = " ";
    strip.start = 1;
    spec->decoders.push_back(std::move(strip));
  }
  return ReadIds(metadata, true, spec);
}

}  // namespace

bool HasGgufTokenizer(const GgufMetadata& metadata) {
  const auto model = metadata.GetString("tokenizer.ggml.model", "none");
  return !model.ok() || (*model != "none" && *model != "no_vocab");
}

Result<TokenizerSpec> TokenizerFromGguf(const GgufMetadata& metadata) {
  DI_ASSIGN(const std::string_view model, metadata.GetString("tokenizer.ggml.model", ""));
  if (model != "gpt2" && model != "llama") {
    return Invalid(Format("tokenizer.ggml.model is \"{}\"; gpt2 and llama are supported", model))
        .WithParam("tokenizer.ggml.model");
  }
  TokenizerSpec spec;
  DI_TRY(ReadVocabulary(metadata, &spec));
  if (model == "gpt2") {
    DI_TRY(ReadByteLevel(metadata, &spec));
  } else {
    DI_TRY(ReadSentencePiece(metadata, &spec));
  }
  return spec;
}

std::string GgufPreTokenizerName(const TokenizerSpec& spec) {
  for (const PreRow& row : kPreRows) {
    if (row.ignore_merges != spec.ignore_merges) continue;
    const std::vector<PreTokenizerStep> steps = StepsOf(row.style);
    if (std::equal(steps.begin(), steps.end(), spec.pre_tokenizers.begin(),
                   spec.pre_tokenizers.end(), SameStep)) {
      return std::string(row.name);
    }
  }
  return {};
}

}  // namespace deepinfer
