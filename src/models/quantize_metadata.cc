#include "models/quantize_metadata.h"

#include <algorithm>
#include <array>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/format.h"
#include "models/config_check.h"
#include "models/tokenizer_source.h"

namespace deepinfer {
namespace {

// tokenizer.ggml.token_type.
constexpr int32_t kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6;

void WriteRope(const RopeConfig& rope, const std::string& prefix, GgufWriter* writer) {
  writer->SetF32(prefix + "rope.freq_base", static_cast<float>(rope.theta));
  writer->SetU32(prefix + "rope.dimension_count", static_cast<uint32_t>(rope.dim));
  if (rope.scaling == RopeScaling::kLinear || rope.scaling == RopeScaling::kYarn) {
    const bool linear = rope.scaling == RopeScaling::kLinear;
    writer->SetString(prefix + "rope.scaling.type", linear ? "linear" : "yarn");
    writer->SetF32(prefix + "rope.scaling.factor", static_cast<float>(rope.factor));
  }
  if (rope.scaling == RopeScaling::kYarn) {
    writer->SetU32(prefix + "rope.scaling.original_context_length",
                   static_cast<uint32_t>(rope.original_context));
    writer->SetF32(prefix + "rope.scaling.yarn_beta_fast", static_cast<float>(rope.beta_fast));
    writer->SetF32(prefix + "rope.scaling.yarn_beta_slow", static_cast<float>(rope.beta_slow));
  }
}

void WriteGeneration(const GenerationDefaults& generation, GgufWriter* writer) {
  const std::pair<const char*, std::optional<float>> numbers[] = {
      {"general.sampling.temp", generation.temperature},
      {"general.sampling.top_p", generation.top_p},
      {"general.sampling.min_p", generation.min_p},
      {"general.sampling.penalty_repeat", generation.repetition_penalty}};
  for (const auto& [key, value] : numbers) {
    if (value.has_value()) writer->SetF32(key, *value);
  }
  if (generation.top_k.has_value() && *generation.top_k >= 0) {
    const int32_t top_k[] = {*generation.top_k};
    GgufValue value;
    value.type = GgufType::kI32;
    value.raw = std::as_bytes(std::span(top_k));
    writer->Set("general.sampling.top_k", value);
  }
}

// Scores under which merging by score repeats the order of `merges`: the earlier a piece is made,
// the higher. Pieces that no merge makes come last.
std::vector<float> ScoresOfMerges(const TokenizerSpec& spec, size_t vocab) {
  std::unordered_map<std::string, size_t> rank;
  rank.reserve(spec.merges.size());
  for (size_t i = 0; i < spec.merges.size(); ++i) {
    rank.emplace(spec.merges[i].first + spec.merges[i].second, i);
  }
  std::vector<float> scores(vocab, -static_cast<float>(spec.merges.size()) - 1.0F);
  for (size_t id = 0; id < spec.vocab.size(); ++id) {
    const auto found = rank.find(spec.vocab[id]);
    if (found != rank.end()) scores[id] = -static_cast<float>(found->second);
  }
  return scores;
}

bool IsBytePiece(const std::string& piece) {
  return piece.size() == 6 && piece.starts_with("<0x") && piece.back() == '>';
}

std::vector<int32_t> TokenTypes(const TokenizerSpec& spec, size_t vocab) {
  std::vector<int32_t> types(vocab, kUnused);
  for (size_t id = 0; id < spec.vocab.size(); ++id) {
    if (spec.vocab[id].empty()) continue;
    types[id] = spec.byte_fallback && IsBytePiece(spec.vocab[id]) ? kByte : kNormal;
  }
  for (const AddedToken& added : spec.added) {
    types[static_cast<size_t>(added.id)] = added.special ? kControl : kUserDefined;
  }
  if (spec.unk_id >= 0) types[static_cast<size_t>(spec.unk_id)] = kUnknown;
  return types;
}

Status WriteSpecialIds(const TokenizerSpec& spec, GgufWriter* writer) {
  const std::pair<const char*, TokenId> ids[] = {{"tokenizer.ggml.bos_token_id", spec.bos_id},
                                                 {"tokenizer.ggml.eos_token_id", spec.eos_id},
                                                 {"tokenizer.ggml.padding_token_id", spec.pad_id},
                                                 {"tokenizer.ggml.unknown_token_id", spec.unk_id}};
  for (const auto& [key, id] : ids) {
    if (id >= 0) writer->SetU32(key, static_cast<uint32_t>(id));
  }
  const auto around = [](const std::vector<TokenId>& ids_around, TokenId id) {
    return ids_around.empty() || (ids_around.size() == 1 && ids_around.front() == id);
  };
  if (!around(spec.prefix_ids, spec.bos_id) || !around(spec.suffix_ids, spec.eos_id)) {
    return Invalid(
        "the tokenizer puts other tokens around a text than BOS and EOS; GGUF cannot "
        "say that");
  }
  writer->SetBool("tokenizer.ggml.add_bos_token", !spec.prefix_ids.empty());
  writer->SetBool("tokenizer.ggml.add_eos_token", !spec.suffix_ids.empty());
  return {};
}

bool IsByteLevel(const TokenizerSpec& spec) {
  return std::any_of(spec.pre_tokenizers.begin(), spec.pre_tokenizers.end(), [](const auto& step) {
    return step.kind == PreTokenizerStep::Kind::kByteLevel;
  });
}

}  // namespace

void WriteConfigMetadata(const ModelConfig& config, const QuantizationType& type,
                         GgufWriter* writer) {
  const std::string architecture(FindFamilyByHf(config.architecture)->gguf_name);
  const std::string prefix = architecture + ".";
  const auto number = [&](const char* key, int value) {
    writer->SetU32(prefix + key, static_cast<uint32_t>(value));
  };
  writer->SetString("general.architecture", architecture);
  writer->SetString("general.type", "model");
  writer->SetString("general.name", config.name);
  writer->SetU32("general.file_type", type.file_type);
  writer->SetU32("general.quantization_version", 2);
  number("vocab_size", config.vocab);
  number("context_length", config.context_max);
  number("block_count", config.layers);
  number("embedding_length", config.hidden);
  number("feed_forward_length", config.intermediate);
  number("attention.head_count", config.heads);
  number("attention.head_count_kv", config.kv_heads);
  number("attention.key_length", config.head_dim);
  number("attention.value_length", config.head_dim);
  writer->SetF32(prefix + "attention.layer_norm_rms_epsilon", config.norm_eps);
  WriteRope(config.rope, prefix, writer);
  if (config.moe.experts > 0) {
    number("expert_count", config.moe.experts);
    number("expert_used_count", config.moe.top_k);
    number("expert_feed_forward_length", config.moe.intermediate);
    writer->SetBool(prefix + "expert_weights_norm", config.moe.normalize_top_k);
  }
  WriteGeneration(config.generation, writer);
}

Status WriteTokenizerMetadata(const TokenizerSpec& spec, int vocab,
                              const std::string& chat_template, GgufWriter* writer) {
  const auto size = static_cast<size_t>(vocab);
  if (spec.vocab.size() > size) {
    return Invalid(Format("the tokenizer has {} tokens, the model {}", spec.vocab.size(), vocab));
  }
  if (spec.model == TokenizerSpec::Model::kUnigram) {
    return Invalid("a Unigram tokenizer cannot be written to GGUF");
  }
  const bool byte_level = IsByteLevel(spec);
  writer->SetString("tokenizer.ggml.model", byte_level ? "gpt2" : "llama");
  std::vector<std::string> tokens = spec.vocab;
  tokens.resize(size);
  for (size_t id = 0; id < size; ++id) {
    if (tokens[id].empty()) tokens[id] = Format("[PAD{}]", id);
  }
  writer->SetStrings("tokenizer.ggml.tokens",
                     std::vector<std::string_view>(tokens.begin(), tokens.end()));
  writer->SetI32s("tokenizer.ggml.token_type", TokenTypes(spec, size));
  if (byte_level) {
    const std::string pre = GgufPreTokenizerName(spec);
    if (pre.empty()) {
      return Invalid(
          "the tokenizer's pre-tokenizer has no GGUF name, so the file would tokenise "
          "differently");
    }
    writer->SetString("tokenizer.ggml.pre", pre);
    std::vector<std::string> merges;
    merges.reserve(spec.merges.size());
    for (const auto& [left, right] : spec.merges) merges.push_back(left + " " + right);
    writer->SetStrings("tokenizer.ggml.merges",
                       std::vector<std::string_view>(merges.begin(), merges.end()));
  } else {
    std::vector<float> scores = spec.scores.empty() ? ScoresOfMerges(spec, size) : spec.scores;
    scores.resize(size, 0.0F);
    writer->SetF32s("tokenizer.ggml.scores", scores);
    const bool prefix = std::any_of(
        spec.normalizers.begin(), spec.normalizers.end(),
        [](const NormalizerStep& step) { return step.kind == NormalizerStep::Kind::kPrepend; });
    writer->SetBool("tokenizer.ggml.add_space_prefix", prefix);
  }
  DI_TRY(WriteSpecialIds(spec, writer));
  if (!chat_template.empty()) writer->SetString("tokenizer.chat_template", chat_template);
  return {};
}

void CopyMetadata(const GgufMetadata& source, const QuantizationType& type, GgufWriter* writer) {
  for (const GgufMetadata::Entry& entry : source.entries()) {
    if (entry.key == "general.alignment" || entry.key.starts_with("split.")) continue;
    writer->Set(entry.key, entry.value);
  }
  writer->SetU32("general.file_type", type.file_type);
  writer->SetU32("general.quantization_version", 2);
}

}  // namespace deepinfer
