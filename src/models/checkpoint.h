// A model on disk, whatever its format: configuration, tensors under canonical roles, tokenizer,
// chat template. Open checks everything that binding relies on, so that a checkpoint in hand has
// every tensor of its family in the right shape. Read-only after Open; any thread.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/model_config.h"
#include "tensor/tensor_file.h"
#include "text/tokenizer_spec.h"

namespace deepinfer {

class GgufMetadata;

enum class TensorRole : uint8_t {
  kTokenEmbedding,
  kOutputNorm,
  kOutput,  // whole model: layer is ignored
  kAttnNorm,
  kQ,
  kK,
  kV,
  kO,
  kQBias,
  kKBias,
  kVBias,
  kOBias,
  kQNorm,
  kKNorm,
  kFfnNorm,
  kGate,
  kUp,
  kDown,
  kGateBias,
  kUpBias,
  kDownBias,  // dense feed-forward
  kRouter,
  kExpertGate,
  kExpertUp,
  kExpertDown,  // sparse feed-forward
};

enum class CheckpointFormat { kSafetensors, kGguf };

// The name of a role in a format ("blk.3.attn_q.weight", "model.layers.3.self_attn.q_proj.weight").
// kExpert*: the stacked GGUF tensor, or the HF tensor of `expert`.
std::string TensorName(CheckpointFormat format, TensorRole role, int layer, int expert = 0);

// The shape that `config` gives a role: of one expert for kExpert*. Empty when a model of this
// configuration has no such tensor in that layer.
std::vector<int64_t> ExpectedShape(const ModelConfig& config, TensorRole role, int layer);

inline constexpr int kNumTensorRoles = static_cast<int>(TensorRole::kExpertDown) + 1;
constexpr bool IsLayerRole(TensorRole role) { return role > TensorRole::kOutput; }
constexpr bool IsExpertRole(TensorRole role) { return role >= TensorRole::kExpertGate; }

class Checkpoint {
 public:
  // `path`: a directory (config.json and safetensors, or one GGUF model, possibly split), a .gguf
  // or a .safetensors file (config.json beside it). Errors name the file, and for tensors that are
  // missing or misshapen each name with the shape expected.
  static Result<std::unique_ptr<Checkpoint>> Open(const std::string& path);
  ~Checkpoint();

  const ModelConfig& config() const;
  // config.json as it stands, for families that read it themselves (ModelFamily::kOwn) and check
  // their tensors with TensorCensus; null for GGUF. Find and Experts know nothing of such a family.
  const Json& config_json() const;
  // The directory of config.json and its neighbours (side files); empty for GGUF.
  const std::string& directory() const;
  const TensorFile& file() const;
  // The same, for a model that reads rows from it as long as it runs (it shares the mapping).
  std::shared_ptr<const TensorFile> shared_file() const;
  CheckpointFormat format() const;
  const std::string& path() const;

  // nullptr when the model has no such tensor (biases, the head of a tied model, a dense layer's
  // router). kExpert* roles: use Experts.
  const TensorView* Find(TensorRole role, int layer = 0) const;
  // The experts of one matrix of one sparse layer, [out, in] each, in order; input of
  // Backend::BindExperts. Empty for a dense layer.
  std::span<const TensorView> Experts(TensorRole role, int layer) const;

  // Absent when the checkpoint has no tokenizer. Take moves it out (it is large).
  const std::optional<TokenizerSpec>& tokenizer() const;
  Result<TokenizerSpec> TakeTokenizer();
  // Jinja source; empty when the checkpoint has none.
  const std::string& chat_template() const;

  // Of a GGUF checkpoint; nullptr for safetensors.
  const GgufMetadata* gguf_metadata() const;

  int64_t parameters() const;  // elements of all weights
  DType main_dtype() const;    // the type of most weight bytes

 private:
  struct Impl;
  explicit Checkpoint(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
