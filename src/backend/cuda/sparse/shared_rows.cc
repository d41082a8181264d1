#include "backend/cuda/sparse/shared_rows.h"

#include <algorithm>

#include "base/check.h"

namespace deepinfer::cuda {
namespace {

constexpr int64_t kPartialMost = int64_t{64} << 20;  // floats

}  // namespace

void SharedRows::Attend(RowAttentionAt at, cudaStream_t stream) {
  const int tokens = at.step.num_tokens;
  if (tokens == 0) return;
  DI_CHECK(at.row_dim <= kRowElementsMost, "rows of {} elements", at.row_dim);
  if (CanAttendByMma(at)) return AttendByMma(at, 0, tokens, stream);
  const int64_t of_one = RowAttentionScratch(1, at.heads, at.value_dim, at.rows_max);
  const auto slab = static_cast<int>(std::clamp<int64_t>(kPartialMost / of_one, 1, tokens));
  at.partial = partial_.Floats(of_one * slab);
  for (int first = 0; first < tokens; first += slab) {
    AttendRows(at, first, std::min(slab, tokens - first), stream);
  }
}

}  // namespace deepinfer::cuda
