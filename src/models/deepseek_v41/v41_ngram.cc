// engram.json: the token map and the constants of the hashes, which nothing at run time derives.
#include <algorithm>
#include <limits>

#include "base/format.h"
#include "base/mapped_file.h"
#include "models/config_reader.h"
#include "models/deepseek_v41/v41_config.h"

namespace deepinfer {
namespace {

Result<Json> ReadSideFile(const std::string& path) {
  Result<MappedFile> file = MappedFile::Open(path);
  if (!file.ok()) {
    return Invalid(Format("{}: the token map of the n-gram memory cannot be read ({}); it belongs "
                          "beside config.json",
                          path, file.status().message()))
        .WithParam(path);
  }
  const std::string_view text(reinterpret_cast<const char*>(file->bytes().data()), file->size());
  Result<Json> json = Json::Parse(text);
  if (!json.ok()) return Invalid(Format("{}: {}", path, json.status().message())).WithParam(path);
  return json;
}

// A list of numbers, or of lists of them, flattened.
Status Flatten(const Json& list, int64_t low, std::vector<int64_t>* out) {
  for (const Json& item : list.items()) {
    if (item.is_array()) {
      DI_TRY(Flatten(item, low, out));
      continue;
    }
    const Result<int64_t> value = item.AsInt();
    if (!value.ok() || *value < low) {
      return Invalid(Format("{} is not a whole number of at least {}", item.Dump(), low));
    }
    out->push_back(*value);
  }
  return {};
}

Status Numbers(const Json& json, std::string_view key, size_t table, size_t count, int64_t low,
               std::vector<int64_t>* out) {
  const Json* lists = json.Find(key);
  if (lists == nullptr || lists->items().size() <= table) {
    return Invalid(Format("{} has no list {}", key, table)).WithParam(std::string(key));
  }
  const Status status = Flatten(lists->items()[table], low, out);
  if (!status.ok()) return Invalid(Format("{}: {}", key, status.message()));
  if (out->size() != count) {
    return Invalid(Format("{} has {} numbers in list {}; the configuration needs {}", key,
                          out->size(), table, count))
        .WithParam(std::string(key));
  }
  return {};
}

Status ReadTable(const Json& json, size_t index, int64_t ids, const V41Ngram& ngram,
                 V41NgramTable* table) {
  const auto columns = static_cast<size_t>(ngram.columns());
  DI_TRY(
      Numbers(json, "multipliers", index, static_cast<size_t>(ngram.ngram), 0, &table->multiplier));
  DI_TRY(Numbers(json, "primes", index, columns, 1, &table->prime));
  DI_TRY(Numbers(json, "offsets", index, columns, 0, &table->offset));
  for (const int64_t multiplier : table->multiplier) {
    if (multiplier > std::numeric_limits<int64_t>::max() / std::max<int64_t>(ids, 1)) {
      return Invalid(Format("multiplier {} overflows with {} compressed ids", multiplier, ids));
    }
  }
  int64_t rows = 0;
  for (size_t i = 0; i < columns; ++i) {
    if (table->offset[i] > table->rows - table->prime[i]) {
      return Invalid(
          Format("offset {} and prime {} reach beyond the {} rows of the table of layer "
                 "{} (engram_num_embeddings)",
                 table->offset[i], table->prime[i], table->rows, table->layer));
    }
    rows += table->prime[i];  // each at most table->rows
  }
  if (rows != table->rows) {
    return Invalid(Format("the primes of layer {} name {} rows, engram_num_embeddings {}",
                          table->layer, rows, table->rows))
        .WithParam("engram_num_embeddings");
  }
  return {};
}

Status ReadAll(const Json& json, V41Config* config) {
  V41Ngram& ngram = config->ngram;
  ConfigReader in(&json, "");
  const int64_t ids = in.Int("compressed_vocab_size", 1, config->vocab);
  ngram.pad = static_cast<int32_t>(in.Int("pad", 0, ids - 1));
  DI_TRY(in.status());
  std::vector<int64_t> map;
  const Json* list = json.Find("token_map");
  if (list == nullptr) return Invalid("token_map is missing").WithParam("token_map");
  DI_TRY(Flatten(*list, 0, &map));
  if (map.size() != static_cast<size_t>(config->vocab)) {
    return Invalid(Format("token_map has {} entries, vocab_size is {}", map.size(), config->vocab))
        .WithParam("token_map");
  }
  for (const int64_t id : map) {
    if (id >= ids) {
      return Invalid(Format("token_map has {}, compressed_vocab_size is {}", id, ids))
          .WithParam("token_map");
    }
    ngram.token_map.push_back(static_cast<int32_t>(id));
  }
  for (size_t i = 0; i < ngram.tables.size(); ++i) {
    DI_TRY(ReadTable(json, i, ids, ngram, &ngram.tables[i]));
  }
  return {};
}

}  // namespace

Status ReadV41Ngram(const std::string& directory, const Json& config_json, V41Config* config) {
  if (config->ngram.tables.empty()) return {};
  const std::string path = directory + "/engram.json";
  DI_ASSIGN(const Json json, ReadSideFile(path));
  if (const Status status = ReadAll(json, config); !status.ok()) {
    return Invalid(Format("{}: {}", path, status.message())).WithParam(status.param());
  }
  // Both spellings of the pad token; the side file must agree with it and with the vocabulary.
  const Json* nested = config_json.Find("text_config");
  ConfigReader text(nested != nullptr && nested->is_object() ? nested : &config_json, "");
  const int64_t pad =
      text.IntOr("engram_pad_token_id", text.IntOr("engram_pad_id", 2, 0, config->vocab - 1), 0,
                 config->vocab - 1);
  const int64_t ids = text.IntOr("engram_compressed_vocab_size", 0, 1, config->vocab);
  DI_TRY(text.status());
  if (config->ngram.token_map[static_cast<size_t>(pad)] != config->ngram.pad) {
    return Invalid(Format("{}: pad is {}, but engram_pad_token_id {} maps to {}", path,
                          config->ngram.pad, pad,
                          config->ngram.token_map[static_cast<size_t>(pad)]))
        .WithParam("engram_pad_token_id");
  }
  const int64_t has = *json.GetInt("compressed_vocab_size", 0);
  if (ids != 0 && ids != has) {
    return Invalid(Format("{}: compressed_vocab_size is {}, engram_compressed_vocab_size {}", path,
                          has, ids))
        .WithParam("engram_compressed_vocab_size");
  }
  return {};
}

}  // namespace deepinfer
