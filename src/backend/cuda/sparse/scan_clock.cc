#include "backend/cuda/sparse/scan_clock.h"

namespace deepinfer::cuda {

ScanClock::~ScanClock() {
  for (const Span& span : spans_) {
    if (span.begin == nullptr) continue;
    cudaEventDestroy(span.begin);
    cudaEventDestroy(span.end);
  }
}

// A span that has not ended by now is not counted.
void ScanClock::Harvest(Span* span) {
  if (!span->open) return;
  span->open = false;
  float ms = 0.0F;
  if (cudaEventQuery(span->end) != cudaSuccess ||
      cudaEventElapsedTime(&ms, span->begin, span->end) != cudaSuccess) {
    cudaGetLastError();
    return;
  }
  ns_.fetch_add(static_cast<int64_t>(double{ms} * 1e6), std::memory_order_relaxed);
}

void ScanClock::Begin(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  begun_ = cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
           status == cudaStreamCaptureStatusNone;
  if (!begun_) return;
  Span& span = spans_[next_];
  Harvest(&span);
  if (span.begin == nullptr) {
    if (cudaEventCreate(&span.begin) != cudaSuccess || cudaEventCreate(&span.end) != cudaSuccess) {
      begun_ = false;
      return;
    }
  }
  cudaEventRecord(span.begin, stream);
}

void ScanClock::End(cudaStream_t stream) {
  if (!begun_) return;
  begun_ = false;
  cudaEventRecord(spans_[next_].end, stream);
  spans_[next_].open = true;
  next_ = (next_ + 1) % spans_.size();
}

}  // namespace deepinfer::cuda
