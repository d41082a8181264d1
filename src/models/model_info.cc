#include "models/model_info.h"

namespace deepinfer {

ModelInfo InfoOf(const Checkpoint& checkpoint, size_t packed_bytes) {
  const ModelConfig& facts = checkpoint.config();
  ModelInfo info;
  info.architecture = facts.architecture;
  info.name = facts.name;
  info.dtype = Info(checkpoint.main_dtype()).name;
  info.parameters = checkpoint.parameters();
  info.layers = facts.layers;
  info.hidden = facts.hidden;
  info.vocab = facts.vocab;
  info.context_max = facts.context_max;
  info.weight_bytes = packed_bytes;
  info.eos_ids = facts.eos_ids;
  info.bos_id = facts.bos_id;
  return info;
}

}  // namespace deepinfer
