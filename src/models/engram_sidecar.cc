#include "models/engram_sidecar.h"

#include <cstdio>
#include <memory>
#include <utility>

#include "base/format.h"
#include "models/checkpoint.h"
#include "models/config_reader.h"

namespace deepinfer {
namespace {

constexpr int64_t kMost = int64_t{1} << 40;  // ComputeEngramSidecar has the real limits

Result<EngramShape> ShapeOf(ConfigReader* reader) {
  EngramShape shape;
  for (const int64_t layer : reader->Ints("engram_layer_ids", 0, 100'000, 64)) {
    shape.layer_ids.push_back(static_cast<int>(layer));
  }
  shape.table_size = reader->Int("engram_vocab_size", 1, kMost);
  shape.max_ngram = static_cast<int>(reader->Int("engram_max_ngram_size", 2, 16));
  shape.heads = static_cast<int>(reader->Int("engram_n_heads", 1, 64));
  shape.vocab = static_cast<int>(reader->Int("vocab_size", 1, 1 << 22));
  const char* pad = reader->Has("engram_pad_id") ? "engram_pad_id" : "engram_pad_token_id";
  shape.pad_token = static_cast<TokenId>(reader->Int(pad, 0, 1 << 22));
  DI_TRY(Status(reader->status()));
  if (shape.layer_ids.empty()) {
    return Invalid("engram_layer_ids is empty: this model has no Engram memory")
        .WithParam("engram_layer_ids");
  }
  return shape;
}

// What the configuration says itself must come out again.
Status Compare(const EngramSidecar& made, ConfigReader* reader) {
  const int64_t keys = reader->IntOr("engram_compressed_vocab_size", made.keys, 1, kMost);
  const std::vector<int64_t> rows = reader->Ints("engram_num_embeddings", 1, kMost, 64);
  DI_TRY(Status(reader->status()));
  if (keys != made.keys) {
    return Invalid(Format("the tokenizer gives {} keys, engram_compressed_vocab_size is {}: they "
                          "do not belong together",
                          made.keys, keys))
        .WithParam("engram_compressed_vocab_size");
  }
  if (!rows.empty() && rows != made.rows) {
    return Invalid(Format("engram_vocab_size gives tables of {} rows first, engram_num_embeddings "
                          "says {}",
                          made.rows.front(), rows.front()))
        .WithParam("engram_num_embeddings");
  }
  return {};
}

}  // namespace

Result<EngramSidecar> EngramSidecarOf(const std::string& directory) {
  DI_ASSIGN(std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(directory));
  const Json& config = checkpoint->config_json();
  const Json* nested = config.Find("text_config");
  ConfigReader reader(nested != nullptr ? nested : &config,
                      nested != nullptr ? "text_config." : "");
  DI_ASSIGN(const EngramShape shape, ShapeOf(&reader));
  if (!checkpoint->tokenizer().has_value()) {
    return Invalid(Format("{}: without tokenizer.json there is no token map", directory))
        .WithParam(directory);
  }
  DI_ASSIGN(TokenizerSpec spec, checkpoint->TakeTokenizer());
  DI_ASSIGN(const std::unique_ptr<Tokenizer> tokenizer, Tokenizer::Create(std::move(spec)));
  DI_ASSIGN(EngramSidecar made, ComputeEngramSidecar(shape, *tokenizer));
  DI_TRY(Compare(made, &reader));
  return made;
}

Result<std::string> WriteEngramSidecar(const std::string& directory) {
  DI_ASSIGN(const EngramSidecar made, EngramSidecarOf(directory));
  const std::string path = directory + "/engram.json", partial = path + ".partial";
  const std::string text = EngramSidecarJson(made).Dump() + "\n";
  std::FILE* file = std::fopen(partial.c_str(), "wb");
  if (file == nullptr) return Unavailable(Format("{} cannot be written", partial)).WithParam(path);
  const bool whole = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (std::fclose(file) != 0 || !whole || std::rename(partial.c_str(), path.c_str()) != 0) {
    std::remove(partial.c_str());
    return Unavailable(Format("{}: write failed", path)).WithParam(path);
  }
  return path;
}

}  // namespace deepinfer
