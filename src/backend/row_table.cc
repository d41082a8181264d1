#include "backend/row_table.h"

#include <algorithm>
#include <limits>

#include "base/format.h"
#include "tensor/dequantize.h"

namespace deepinfer {
namespace {

class MappedRowTable final : public RowTable {
 public:
  explicit MappedRowTable(const TensorView& view)
      : RowTable(view.shape[0], view.shape[1]), view_(view) {}

  void Prefetch(std::span<const int64_t>) override {}

  void Gather(const int64_t* ids, int64_t n, float* out) override {
    for (int64_t i = 0; i < n; ++i, out += cols()) {
      if (ids[i] < 0 || ids[i] >= rows()) {
        std::fill_n(out, cols(), std::numeric_limits<float>::quiet_NaN());
        continue;
      }
      DequantizeRow(view_, ids[i], out);
      ++stats_.rows;
      ++stats_.reads;
    }
  }

  RowTableStats stats() const override { return stats_; }

 private:
  TensorView view_;
  RowTableStats stats_;
};

}  // namespace

Result<std::unique_ptr<RowTable>> RowTable::Open(const TensorFile&, const TensorView& view,
                                                 const RowTableOptions&) {
  const int64_t block = Info(view.dtype).block_elements;
  if (view.shape.size() != 2 || view.shape[1] < 1 || view.shape[1] % block != 0 ||
      (view.scale != nullptr && view.scale_block_rows != 1)) {
    return Invalid(Format("tensor {}: a table of rows needs two dimensions and scales by row",
                          view.name))
        .WithParam(view.name);
  }
  return std::unique_ptr<RowTable>(new MappedRowTable(view));
}

}  // namespace deepinfer
