// The tokenizer of random DeepSeek checkpoints: bytes, made-up words, control tokens.
#include <array>
#include <utility>

#include "base/format.h"
#include "models/random_deepseek_shape.h"
#include "text/unicode.h"

namespace deepinfer {
namespace {

constexpr std::array<std::string_view, 3> kFirst = {"<｜begin▁of▁sentence｜>",
                                                    "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"};
// The last ids of the vocabulary, in this order.
constexpr std::array<std::string_view, 8> kLast = {
    "<｜System｜>", "<｜User｜>", "<｜Assistant｜>",       "<think>",
    "</think>",     "｜DSML｜",   "<｜latest_reminder｜>", "<｜deepseek_image｜>"};

// As byte-level tokenizers show a byte.
std::string ByteText(uint32_t byte, uint32_t* shifted) {
  const bool shown = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
  std::string text;
  AppendCodePoint(shown ? byte : (*shifted)++, &text);
  return text;
}

struct Words {
  std::vector<std::string> pieces;
  std::vector<std::pair<std::string, std::string>> merges;
};

// Words of two, three, ... letters, each the word without its last letter and that letter.
Words MakeWords(size_t count) {
  Words words;
  std::vector<std::string> shorter;
  for (char c = 'a'; c <= 'z'; ++c) shorter.emplace_back(1, c);
  while (words.pieces.size() < count) {
    std::vector<std::string> longer;
    for (size_t i = 0; i < shorter.size() * 26 && words.pieces.size() < count; ++i) {
      const std::string last(1, static_cast<char>('a' + i % 26));
      longer.push_back(shorter[i / 26] + last);
      words.pieces.push_back(longer.back());
      words.merges.emplace_back(shorter[i / 26], last);
    }
    shorter = std::move(longer);
  }
  return words;
}

Json AddedJson(int id, std::string_view content) {
  Json token = Json::Object();
  token.Set("id", Json::Int(id));
  token.Set("content", Json::String(std::string(content)));
  for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized"}) {
    token.Set(flag, Json::Bool(false));
  }
  token.Set("special", Json::Bool(content != kLast.back()));  // the image token is kept in texts
  return token;
}

Json SplitJson(std::string_view pattern) {
  Json regex = Json::Object(), split = Json::Object();
  regex.Set("Regex", Json::String(std::string(pattern)));
  split.Set("type", Json::String("Split"));
  split.Set("pattern", std::move(regex));
  split.Set("behavior", Json::String("Isolated"));
  split.Set("invert", Json::Bool(false));
  return split;
}

Json ByteLevelJson() {
  Json step = Json::Object();
  step.Set("type", Json::String("ByteLevel"));
  step.Set("add_prefix_space", Json::Bool(false));
  step.Set("trim_offsets", Json::Bool(true));
  step.Set("use_regex", Json::Bool(false));
  return step;
}

Json ModelJson(const RandomDeepseekShape& shape) {
  Json vocab = Json::Object(), merges = Json::Array();
  int id = 0;
  for (const std::string_view token : kFirst) vocab.Set(std::string(token), Json::Int(id++));
  uint32_t shifted = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    vocab.Set(ByteText(byte, &shifted), Json::Int(id++));
  }
  const Words words = MakeWords(static_cast<size_t>(NoiseTokenOf(shape) - id));
  for (const std::string& piece : words.pieces) vocab.Set(piece, Json::Int(id++));
  for (const auto& [left, right] : words.merges) {
    merges.Push(Json::String(Format("{} {}", left, right)));
  }
  Json model = Json::Object();
  model.Set("type", Json::String("BPE"));
  model.Set("dropout", Json());
  model.Set("unk_token", Json());
  model.Set("continuing_subword_prefix", Json());
  model.Set("end_of_word_suffix", Json());
  model.Set("fuse_unk", Json::Bool(false));
  model.Set("byte_fallback", Json::Bool(false));
  model.Set("vocab", std::move(vocab));
  model.Set("merges", std::move(merges));
  return model;
}

Json PreTokenizerJson() {
  Json steps = Json::Array();
  steps.Push(SplitJson(R"(\p{N}{1,3})"));
  steps.Push(SplitJson("[一-龥\u3040-ゟ゠-ヿ]+"));
  steps.Push(SplitJson(
      "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}"
      "\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"));
  steps.Push(ByteLevelJson());
  Json sequence = Json::Object();
  sequence.Set("type", Json::String("Sequence"));
  sequence.Set("pretokenizers", std::move(steps));
  return sequence;
}

}  // namespace

int NoiseTokenOf(const RandomDeepseekShape& shape) {
  return shape.vocab - static_cast<int>(kLast.size());
}
int ImageTokenOf(const RandomDeepseekShape& shape) { return shape.vocab - 1; }

std::string DeepseekTokenizerJson(const RandomDeepseekShape& shape) {
  Json added = Json::Array();
  int id = 0;
  for (const std::string_view token : kFirst) added.Push(AddedJson(id++, token));
  id = NoiseTokenOf(shape);
  for (const std::string_view token : kLast) added.Push(AddedJson(id++, token));
  Json tokenizer = Json::Object();
  tokenizer.Set("version", Json::String("1.0"));
  tokenizer.Set("truncation", Json());
  tokenizer.Set("padding", Json());
  tokenizer.Set("added_tokens", std::move(added));
  tokenizer.Set("normalizer", Json());
  tokenizer.Set("pre_tokenizer", PreTokenizerJson());
  tokenizer.Set("post_processor", Json());
  tokenizer.Set("decoder", ByteLevelJson());
  tokenizer.Set("model", ModelJson(shape));
  return tokenizer.Dump(1) + "\n";
}

std::string DeepseekTokenizerConfigJson() {
  Json config = Json::Object();
  config.Set("add_bos_token", Json::Bool(false));
  config.Set("add_eos_token", Json::Bool(false));
  config.Set("bos_token", Json::String(std::string(kFirst[0])));
  config.Set("eos_token", Json::String(std::string(kFirst[1])));
  config.Set("pad_token", Json::String(std::string(kFirst[2])));
  config.Set("unk_token", Json());
  config.Set("model_max_length", Json::Int(1'048'576));
  config.Set("tokenizer_class", Json::String("PreTrainedTokenizerFast"));
  return config.Dump(2) + "\n";
}

}  // namespace deepinfer
