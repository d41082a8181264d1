#include "models/registry.h"

#include <string_view>

#include "base/format.h"
#include "models/decoder/decoder_model.h"
#include "models/deepseek_v3/model.h"
#include "models/deepseek_v4/model.h"
#include "models/deepseek_v41/v41_model.h"

namespace deepinfer {
namespace {

struct Family {
  std::string_view architecture;
  Result<std::unique_ptr<Model>> (*load)(const Checkpoint& checkpoint, Backend* backend,
                                         const LoadProgress& progress);
  Result<CacheLayout> (*layout)(const Checkpoint& checkpoint, int kv_element_bytes);
};

constexpr Family kFamilies[] = {
    {"llama", DecoderModel::Load, DecoderModel::LayoutOf},
    {"qwen2", DecoderModel::Load, DecoderModel::LayoutOf},
    {"qwen3", DecoderModel::Load, DecoderModel::LayoutOf},
    {"qwen3_moe", DecoderModel::Load, DecoderModel::LayoutOf},
    {"deepseek_v41", V41Model::Load, V41Model::LayoutOf},
    {"deepseek_v3", DeepseekV3Model::Load, DeepseekV3Model::LayoutOf},
    {"deepseek_v4", DeepseekV4Model::Load, DeepseekV4Model::LayoutOf},
};

Result<const Family*> FamilyOf(const std::string& architecture) {
  std::string known;
  for (const Family& family : kFamilies) {
    if (family.architecture == architecture) return &family;
    known += Format("{}{}", known.empty() ? "" : ", ", family.architecture);
  }
  return Invalid(Format("architecture {}: unknown; known are {}", architecture, known));
}

}  // namespace

Result<std::unique_ptr<Model>> LoadModel(const Checkpoint& checkpoint, Backend* backend,
                                         const LoadProgress& progress) {
  DI_ASSIGN(const Family* family, FamilyOf(checkpoint.config().architecture));
  return family->load(checkpoint, backend, progress);
}

Result<CacheLayout> LayoutOfModel(const Checkpoint& checkpoint, int kv_element_bytes) {
  DI_ASSIGN(const Family* family, FamilyOf(checkpoint.config().architecture));
  return family->layout(checkpoint, kv_element_bytes);
}

}  // namespace deepinfer
