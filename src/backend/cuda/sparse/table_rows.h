// Rows of tables in files for the device: ids come to the host, rows go back through pinned memory.
// The only place where the host waits for the device in a forward: for ids that need token ids
// alone. Owned by CudaSparseOps; runner thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <vector>

#include "backend/row_table.h"

namespace deepinfer::cuda {

class TableRows {
 public:
  TableRows() = default;
  TableRows(const TableRows&) = delete;
  TableRows& operator=(const TableRows&) = delete;
  ~TableRows();

  // ids [count] in device memory.
  void Prefetch(RowTable* table, const int64_t* ids, int64_t count, cudaStream_t stream);
  // The rows of the last prefetch to out [count, cols] in device memory.
  void Gather(RowTable* table, int64_t count, float* out, cudaStream_t stream);

 private:
  struct Staging {
    std::vector<int64_t> ids;
    float* rows = nullptr;  // pinned
    int64_t floats = 0;
    cudaEvent_t copied = nullptr;  // after the last copy from it
  };

  std::map<RowTable*, Staging> staging_;
};

}  // namespace deepinfer::cuda
