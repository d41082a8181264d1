// What a quantisation name ("Q4_K_M") means for each tensor: the table behind `model quantize` and
// `model random`. Plain functions and data, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "deepinfer/status.h"
#include "models/checkpoint.h"
#include "tensor/dtype.h"

namespace deepinfer {

struct QuantizationType {
  std::string_view name;       // "Q4_K_M"
  DType base = DType::kF32;    // of most matrices
  DType high = DType::kF32;    // mixtures: of the layers that lose most
  DType output = DType::kF32;  // head, or embedding of a tied model
  enum class Mixture : uint8_t {
    kNone,
    kMedium,   // attention values and down projections of about half the layers in `high`
    kSmall,    // of the first layers only
    kExperts,  // experts in `base`, everything else in `output`
  } mixture = Mixture::kNone;
  uint32_t file_type = 0;  // general.file_type of GGUF
};

// Any case. Errors list the known names.
Result<QuantizationType> ParseQuantizationType(std::string_view name);
// "F32, F16, ..." for messages and help.
std::string QuantizationTypeNames();

// The stored type of a tensor whose rows have `cols` elements. Vectors and routers stay F32; rows
// that no block of the type divides get the nearest larger type whose blocks do.
DType StoredType(const QuantizationType& type, const ModelConfig& config, TensorRole role,
                 int layer, int64_t cols);

}  // namespace deepinfer
