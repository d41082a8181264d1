#include "models/quantize_types.h"

#include <array>

#include "base/format.h"

namespace deepinfer {
namespace {

using Mixture = QuantizationType::Mixture;

// Mixtures and file_type numbers as GGUF users know them.
constexpr std::array<QuantizationType, 15> kTypes = {{
    {"F32", DType::kF32, DType::kF32, DType::kF32, Mixture::kNone, 0},
    {"F16", DType::kF16, DType::kF16, DType::kF16, Mixture::kNone, 1},
    {"BF16", DType::kBF16, DType::kBF16, DType::kBF16, Mixture::kNone, 32},
    {"Q8_0", DType::kQ8_0, DType::kQ8_0, DType::kQ8_0, Mixture::kNone, 7},
    {"Q4_0", DType::kQ4_0, DType::kQ4_0, DType::kQ6_K, Mixture::kNone, 2},
    {"Q4_1", DType::kQ4_1, DType::kQ4_1, DType::kQ6_K, Mixture::kNone, 3},
    {"Q5_0", DType::kQ5_0, DType::kQ5_0, DType::kQ6_K, Mixture::kNone, 8},
    {"Q5_1", DType::kQ5_1, DType::kQ5_1, DType::kQ6_K, Mixture::kNone, 9},
    {"Q4_K", DType::kQ4_K, DType::kQ6_K, DType::kQ6_K, Mixture::kMedium, 15},
    {"Q4_K_M", DType::kQ4_K, DType::kQ6_K, DType::kQ6_K, Mixture::kMedium, 15},
    {"Q4_K_S", DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, Mixture::kSmall, 14},
    {"Q5_K_M", DType::kQ5_K, DType::kQ6_K, DType::kQ6_K, Mixture::kMedium, 17},
    {"Q5_K_S", DType::kQ5_K, DType::kQ5_K, DType::kQ6_K, Mixture::kNone, 16},
    {"Q6_K", DType::kQ6_K, DType::kQ6_K, DType::kQ6_K, Mixture::kNone, 18},
    {"MXFP4", DType::kMXFP4, DType::kMXFP4, DType::kQ8_0, Mixture::kExperts, 38},
}};

// The next type whose blocks may divide a row that blocks of `dtype` do not.
DType Fallback(DType dtype) {
  switch (dtype) {
    case DType::kQ4_K:
      return DType::kQ5_0;
    case DType::kQ5_K:
      return DType::kQ5_1;
    case DType::kQ6_K:
      return DType::kQ8_0;
    default:
      return DType::kF16;
  }
}

// The layers that medium mixtures keep better: the first and last eighth and every third between.
bool IsDelicateLayer(int layer, int layers) {
  const int eighth = layers / 8;
  return layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2;
}

DType MixtureType(const QuantizationType& type, const ModelConfig& config, TensorRole role,
                  int layer) {
  const bool down = role == TensorRole::kDown || role == TensorRole::kExpertDown;
  const bool value = role == TensorRole::kV;
  switch (type.mixture) {
    case Mixture::kNone:
      return type.base;
    case Mixture::kMedium:
      return (down || value) && IsDelicateLayer(layer, config.layers) ? type.high : type.base;
    case Mixture::kSmall:
      return (value && layer < 4) || (down && layer < config.layers / 8) ? type.high : type.base;
    case Mixture::kExperts:
      return IsExpertRole(role) || config.moe.experts == 0 ? type.base : type.output;
  }
  return type.base;
}

}  // namespace

Result<QuantizationType> ParseQuantizationType(std::string_view name) {
  std::string upper(name);
  for (char& c : upper) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  for (const QuantizationType& type : kTypes) {
    if (type.name == upper) return type;
  }
  return Invalid(Format("unknown quantisation type \"{}\"; known types: {}", name,
                        QuantizationTypeNames()))
      .WithParam("type");
}

std::string QuantizationTypeNames() {
  std::string names;
  for (const QuantizationType& type : kTypes) {
    names += Format("{}{}", names.empty() ? "" : ", ", type.name);
  }
  return names;
}

DType StoredType(const QuantizationType& type, const ModelConfig& config, TensorRole role,
                 int layer, int64_t cols) {
  if (ExpectedShape(config, role, layer).size() < 2 || role == TensorRole::kRouter) {
    return DType::kF32;
  }
  const bool is_output =
      role == TensorRole::kOutput || (role == TensorRole::kTokenEmbedding && config.tied_head);
  DType dtype = is_output ? type.output : MixtureType(type, config, role, layer);
  while (cols % Info(dtype).block_elements != 0) dtype = Fallback(dtype);
  return dtype;
}

}  // namespace deepinfer
