// What every family tells about its model alike: the facts of a checkpoint. Plain data.
#pragma once

#include <cstddef>

#include "models/checkpoint.h"
#include "models/model.h"

namespace deepinfer {

// `packed_bytes`: of the weights bound from it.
ModelInfo InfoOf(const Checkpoint& checkpoint, size_t packed_bytes);

}  // namespace deepinfer
