// Router, experts and combine of one sparse layer on the device: rows are sorted by expert there,
// and the host learns nothing of the choice. Owned by CudaBackend; runner thread.
#pragma once

#include <cstdint>
#include <map>

#include "backend/cuda/cuda_context.h"
#include "backend/cuda/sparse/device_buffer.h"

namespace deepinfer::cuda {

class CudaMoeStage {
 public:
  explicit CudaMoeStage(CudaContext* context) : context_(context) {}
  void Run(const MoeArgs& args);

 private:
  void RouteRows(const MoeArgs& args);
  void RunExperts(const MoeArgs& args);
  const int32_t* TokenExperts(const MoeArgs& args);

  CudaContext* context_;
  std::map<const int32_t*, DeviceBuffer> token_experts_;  // by the host's table
  DeviceBuffer logits_;                                   // [rows, experts]
  DeviceBuffer expert_, weight_, entry_;                  // [rows, top_k]
  DeviceBuffer begin_;                                    // [experts + 1]
  DeviceBuffer entry_row_;                                // [rows * top_k]
  DeviceBuffer hidden_, input_, outputs_;  // [rows * top_k, inter], padded, [rows * top_k, hidden]
};

}  // namespace deepinfer::cuda
