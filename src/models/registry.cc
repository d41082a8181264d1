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
  bool any_memory;  // computes where the backend says, not in host memory alone
};

constexpr Family kFamilies[] = {
    {"llama", DecoderModel::Load, DecoderModel::LayoutOf, true},
    {"qwen2", DecoderModel::Load, DecoderModel::LayoutOf, true},
    {"qwen3", DecoderModel::Load, DecoderModel::LayoutOf, true},
    {"qwen3_moe", DecoderModel::Load, DecoderModel::LayoutOf, true},
    {"deepseek_v41", V41Model::Load, V41Model::LayoutOf, false},
    {"deepseek_v3", DeepseekV3Model::Load, DeepseekV3Model::LayoutOf, false},
    {"deepseek_v4", DeepseekV4Model::Load, DeepseekV4Model::LayoutOf, false},
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
  if (!family->any_memory && !backend->info().host_memory) {
    return Invalid(Format("architecture {}: does not run on device {}; use --device cpu",
                          family->architecture, backend->info().name))
        .WithParam("device");
  }
  return family->load(checkpoint, backend, progress);
}

Result<CacheLayout> LayoutOfModel(const Checkpoint& checkpoint, int kv_element_bytes) {
  DI_ASSIGN(const Family* family, FamilyOf(checkpoint.config().architecture));
  return family->layout(checkpoint, kv_element_bytes);
}

}  // namespace deepinfer
