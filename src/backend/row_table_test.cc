#include "backend/row_table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tensor/dequantize.h"
#include "tensor/scaled_tensor.h"

namespace deepinfer {
namespace {

constexpr int64_t kRows = 1000, kCols = 64;

class Table final : public TensorFile {
 public:
  Table() : codes_(kRows * kCols), scales_(kRows * kCols / 32) {
    std::mt19937 random(1);
    for (std::byte& b : codes_) b = static_cast<std::byte>(random() % 127);
    for (std::byte& b : scales_) b = static_cast<std::byte>(120 + random() % 9);
    scales_[2 * 77] = std::byte{255};  // row 77 is damaged
    view_ =
        WithScale({"table", DType::kF8_E4M3, {kRows, kCols}, codes_.data(), codes_.size()},
                  {"scale", DType::kF8_E8M0, {kRows, kCols / 32}, scales_.data(), scales_.size()})
            .value();
  }
  const TensorView* Find(std::string_view) const override { return nullptr; }
  const std::vector<TensorView>& tensors() const override { return none_; }
  void Drop(const TensorView&) const override {}
  size_t file_bytes() const override { return 0; }
  const TensorView& view() const { return view_; }

 private:
  std::vector<std::byte> codes_, scales_;
  std::vector<TensorView> none_;
  TensorView view_;
};

std::unique_ptr<RowTable> Open(const Table& table, size_t cache_bytes) {
  return RowTable::Open(table, table.view(), {.cache_bytes = cache_bytes}).value();
}

void ExpectRow(const Table& table, int64_t id, const float* got) {
  std::vector<float> want(kCols);
  DequantizeRow(table.view(), id, want.data());
  for (int64_t k = 0; k < kCols; ++k) {
    if (std::isnan(want[static_cast<size_t>(k)])) {
      ASSERT_TRUE(std::isnan(got[k])) << id;
    } else {
      ASSERT_EQ(want[static_cast<size_t>(k)], got[k]) << id << " " << k;
    }
  }
}

// Any mixture of prefetched, repeated, forgotten and plainly wrong ids, in caches of every size.
TEST(RowTable, RowsAreTheStoredOnes) {
  const Table table;
  for (size_t cache_bytes : {size_t{0}, size_t{20000}, size_t{1} << 20}) {
    const auto rows = Open(table, cache_bytes);
    EXPECT_EQ(rows->rows(), kRows);
    EXPECT_EQ(rows->cols(), kCols);
    std::mt19937 random(2);
    for (int step = 0; step < 300; ++step) {
      const size_t count = step % 50 == 0 ? 300 : random() % 40;
      std::vector<int64_t> ids(count);
      for (int64_t& id : ids) id = static_cast<int64_t>(random() % kRows);
      if (step % 3 != 0) rows->Prefetch(ids);
      if (step % 7 == 0 && count > 2) ids[1] = kRows, ids[2] = -1;
      if (step % 5 == 0 && count > 3) ids[3] = ids[0];
      std::vector<float> out(count * kCols);
      rows->Gather(ids.data(), static_cast<int64_t>(count), out.data());
      for (size_t i = 0; i < count; ++i) {
        const float* row = out.data() + i * kCols;
        if (ids[i] < 0 || ids[i] >= kRows) {
          for (int64_t k = 0; k < kCols; ++k) ASSERT_TRUE(std::isnan(row[k]));
        } else {
          ExpectRow(table, ids[i], row);
        }
      }
    }
    EXPECT_LE(rows->stats().hits, rows->stats().rows);
  }
}

TEST(RowTable, CountsRowsHitsAndReads) {
  const Table table;
  const auto rows = Open(table, 1 << 20);
  const int64_t ids[] = {5, 9, 5, 700, -3};
  float out[5 * kCols];
  rows->Gather(ids, 5, out);
  EXPECT_EQ(rows->stats().rows, 3U);
  EXPECT_EQ(rows->stats().hits, 0U);
  EXPECT_EQ(rows->stats().reads, 3U);
  rows->Gather(ids, 5, out);
  EXPECT_EQ(rows->stats().rows, 6U);
  EXPECT_EQ(rows->stats().hits, 3U);
  EXPECT_EQ(rows->stats().reads, 3U);
  ExpectRow(table, 700, out + 3 * kCols);
}

TEST(RowTable, DamagedRowsAreNanAlone) {
  const Table table;
  const auto rows = Open(table, 1 << 20);
  const int64_t ids[] = {76, 77, 78};
  float out[3 * kCols];
  rows->Gather(ids, 3, out);
  EXPECT_TRUE(std::isfinite(out[0]) && std::isnan(out[kCols]) && std::isfinite(out[2 * kCols]));
}

TEST(RowTable, EndsWithReadsUnderWay) {
  const Table table;
  for (int i = 0; i < 50; ++i) {
    const auto rows = Open(table, 1 << 20);
    std::vector<int64_t> ids(500);
    for (size_t k = 0; k < ids.size(); ++k) ids[k] = static_cast<int64_t>(k);
    rows->Prefetch(ids);
  }
}

TEST(RowTable, RefusesWhatHasNoRows) {
  const Table table;
  TensorView view = table.view();
  view.shape = {kRows * kCols};
  EXPECT_FALSE(RowTable::Open(table, view, {}).ok());
  view = table.view();
  view.scale_block_rows = 32;
  EXPECT_FALSE(RowTable::Open(table, view, {}).ok());
  view = table.view();
  view.scale = nullptr;
  EXPECT_FALSE(RowTable::Open(table, view, {}).ok());
}

}  // namespace
}  // namespace deepinfer
