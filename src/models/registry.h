// The explicit table of model families: architecture -> the code that binds and runs it.
#pragma once

#include <cstdint>
#include <memory>

#include "backend/backend.h"
#include "deepinfer/status.h"
#include "models/checkpoint.h"
#include "models/model.h"

namespace deepinfer {

// Called while weights are bound, on the loading thread.
struct LoadProgress {
  void (*report)(void* context, int64_t bytes_done, int64_t bytes_total) = nullptr;
  void* context = nullptr;
};

// Binds every weight in execution order. `backend` must outlive the model; the checkpoint may be
// closed afterwards. Errors: a tensor that the device cannot hold, named.
Result<std::unique_ptr<Model>> LoadModel(const Checkpoint& checkpoint, Backend* backend,
                                         const LoadProgress& progress = {});

// What a model of the checkpoint keeps in the cache, told without its weights. `kv_element_bytes`:
// of the backend that would run it.
Result<CacheLayout> LayoutOfModel(const Checkpoint& checkpoint, int kv_element_bytes);

}  // namespace deepinfer
