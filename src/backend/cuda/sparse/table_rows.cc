#include "backend/cuda/sparse/table_rows.h"

#include "base/check.h"

namespace deepinfer::cuda {
namespace {

void Must(cudaError_t error, const char* what) {
  DI_CHECK(error == cudaSuccess, "{}: {}", what, cudaGetErrorString(error));
}

}  // namespace

TableRows::~TableRows() {
  for (auto& [table, staging] : staging_) {
    cudaFreeHost(staging.rows);
    if (staging.copied != nullptr) cudaEventDestroy(staging.copied);
  }
}

void TableRows::Prefetch(RowTable* table, const int64_t* ids, int64_t count, cudaStream_t stream) {
  Staging& staging = staging_[table];
  staging.ids.resize(static_cast<size_t>(count));
  Must(cudaMemcpyAsync(staging.ids.data(), ids, staging.ids.size() * sizeof(int64_t),
                       cudaMemcpyDefault, stream),
       "ids of table rows");
  Must(cudaStreamSynchronize(stream), "ids of table rows");
  table->Prefetch(staging.ids);
}

void TableRows::Gather(RowTable* table, int64_t count, float* out, cudaStream_t stream) {
  Staging& staging = staging_[table];
  DI_CHECK(static_cast<int64_t>(staging.ids.size()) == count, "{} rows after {} were asked for",
           count, staging.ids.size());
  if (count == 0) return;
  if (staging.copied == nullptr) {
    Must(cudaEventCreateWithFlags(&staging.copied, cudaEventDisableTiming), "an event");
  } else {
    Must(cudaEventSynchronize(staging.copied), "a copy of table rows");
  }
  const int64_t floats = count * table->cols();
  if (floats > staging.floats) {
    cudaFreeHost(staging.rows);
    Must(cudaMallocHost(reinterpret_cast<void**>(&staging.rows),
                        static_cast<size_t>(floats) * sizeof(float)),
         "pinned memory for table rows");
    staging.floats = floats;
  }
  table->Gather(staging.ids.data(), count, staging.rows);
  Must(cudaMemcpyAsync(out, staging.rows, static_cast<size_t>(floats) * sizeof(float),
                       cudaMemcpyDefault, stream),
       "table rows");
  Must(cudaEventRecord(staging.copied, stream), "an event");
}

}  // namespace deepinfer::cuda
