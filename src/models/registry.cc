#include "models/registry.h"

#include <string_view>

#include "base/format.h"
#include "models/decoder/decoder_model.h"
#include "models/deepseek_v41/v41_model.h"
#include "models/deepseek_v3/model.h"
#include "models/deepseek_v4/model.h"

namespace deepinfer {
namespace {

struct Family {
  std::string_view architecture;
  Result<std::unique_ptr<Model>> (*load)(const Checkpoint& checkpoint, Backend* backend,
                                         const LoadProgress& progress);
};

constexpr Family kFamilies[] = {
    {"llama", DecoderModel::Load},
    {"qwen2", DecoderModel::Load},
    {"qwen3", DecoderModel::Load},
    {"qwen3_moe", DecoderModel::Load},
    {"deepseek_v41", V41Model::Load},
    {"deepseek_v3", DeepseekV3Model::Load},
    {"deepseek_v4", DeepseekV4Model::Load},
};

}  // namespace

Result<std::unique_ptr<Model>> LoadModel(const Checkpoint& checkpoint, Backend* backend,
                                         const LoadProgress& progress) {
  const std::string& architecture = checkpoint.config().architecture;
  std::string known;
  for (const Family& family : kFamilies) {
    if (family.architecture == architecture) return family.load(checkpoint, backend, progress);
    known += Format("{}{}", known.empty() ? "" : ", ", family.architecture);
  }
  return Invalid(Format("architecture {}: unknown; known are {}", architecture, known));
}

}  // namespace deepinfer
