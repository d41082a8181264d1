// DeepSeek-V4.1 checkpoints that spell their tensors as transformers does: the module names of its
// classes, with or without "model.", "weight_scale_inv", experts stacked in one tensor. Everything
// behind Checkpoint sees the names of the release. Loading thread; read-only afterwards.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "deepinfer/status.h"
#include "tensor/tensor_file.h"

namespace deepinfer {

// The release's name of a tensor: "model.layers.3.self_attn.q_a_proj.weight" is
// "layers.3.attn.wq_a.weight". Names of the release, and unknown ones, stay what they are.
std::string ReleaseName(std::string_view name);

// `file` under the names of the release; `file` itself when it has no others. Errors name the
// tensors: two of one name, stacked experts that do not split.
Result<std::shared_ptr<TensorFile>> WithReleaseNames(std::shared_ptr<TensorFile> file);

}  // namespace deepinfer
