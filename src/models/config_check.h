// Checks that both configuration readers share: ranges of single numbers with messages that name
// key and value, and the relations between fields once all are read. Plain functions.
#pragma once

#include <cstdint>
#include <string_view>

#include "deepinfer/status.h"
#include "models/model_config.h"

namespace deepinfer {

inline constexpr int64_t kLayersMax = 1'024;
inline constexpr int64_t kWidthMax = 1 << 20;  // hidden, intermediate, heads x head_dim
inline constexpr int64_t kVocabMax = 1 << 24;
inline constexpr int64_t kContextMax = 1 << 28;
inline constexpr int64_t kHeadDimMax = 4'096;
inline constexpr int64_t kExpertsMax = 4'096;

Result<int> CheckedInt(std::string_view key, int64_t value, int64_t low, int64_t high);
// (low, high]: low excluded, high included.
Result<double> CheckedDouble(std::string_view key, double value, double low, double high);

struct KnownFamily {
  ModelFamily family;
  std::string_view architecture;  // our name, and model_type of config.json
  std::string_view hf_class;      // architectures[0]
  std::string_view gguf_name;     // general.architecture; empty: no GGUF layout
};
// nullptr when unknown. The third spelling is looked up by the reader that knows it.
const KnownFamily* FindFamilyByHf(std::string_view model_type_or_class);
const KnownFamily* FindFamilyByGguf(std::string_view name);
Status UnknownArchitecture(std::string_view name);

// Token ids within the vocabulary, duplicate end ids removed.
Status FinishTokenIds(ModelConfig* config);
// Divisibility, evenness, products, token ids within the vocabulary, duplicate end ids removed.
Status FinishConfig(ModelConfig* config);

}  // namespace deepinfer
