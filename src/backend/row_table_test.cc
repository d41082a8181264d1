#include "backend/row_table.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <random>
#include <string>

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

// The same table in a file that is mapped, as checkpoints are.
class StoredTable final : public TensorFile {
 public:
  StoredTable() {
    const TensorView& from = memory_.view();
    const size_t scales = static_cast<size_t>(kRows * from.scale_cols);
    path_ = testing::TempDir() + "deepinfer_row_table_" + std::to_string(getpid());
    Write(path_);
    file_ = MappedFile::Open(path_).value();
    const std::byte* data = file_.bytes().data() + kLead;
    view_ = WithScale({"table", DType::kF8_E4M3, {kRows, kCols}, data, from.bytes},
                      {"scale", DType::kF8_E8M0, {kRows, kCols / 32}, data + from.bytes, scales})
                .value();
  }
  ~StoredTable() override { unlink(path_.c_str()); }
  void Write(const std::string& path) const {
    const TensorView& from = memory_.view();
    std::FILE* file = std::fopen(path.c_str(), "wb");
    const std::string lead(kLead, 'x');
    std::fwrite(lead.data(), 1, lead.size(), file);
    std::fwrite(from.data, 1, from.bytes, file);
    std::fwrite(from.scale, 1, static_cast<size_t>(kRows * from.scale_cols), file);
    std::fclose(file);
  }
  // Behind the back of whoever has it open.
  void Cut(int64_t rows) const { EXPECT_EQ(truncate(path_.c_str(), kLead + rows * kCols), 0); }

  const TensorView* Find(std::string_view) const override { return nullptr; }
  const std::vector<TensorView>& tensors() const override { return none_; }
  void Drop(const TensorView&) const override {}
  size_t file_bytes() const override { return file_.size(); }
  FilePlace PlaceOf(const std::byte* data) const override {
    return {&file_, static_cast<size_t>(data - file_.bytes().data())};
  }
  const TensorView& view() const { return view_; }
  const Table& memory() const { return memory_; }
  const std::string& path() const { return path_; }

 private:
  static constexpr size_t kLead = 100;
  Table memory_;
  std::string path_;
  MappedFile file_;
  std::vector<TensorView> none_;
  TensorView view_;
};

class StoredRows : public testing::TestWithParam<RowIo> {
 protected:
  // nullptr where the system has no io_uring.
  std::unique_ptr<RowTable> Open(const StoredTable& table, size_t cache_bytes) {
    Result<std::unique_ptr<RowTable>> rows =
        RowTable::Open(table, table.view(), {.io = GetParam(), .cache_bytes = cache_bytes});
    if (rows.ok()) return std::move(rows).value();
    EXPECT_EQ(GetParam(), RowIo::kIoUring) << rows.status().message();
    EXPECT_EQ(rows.status().code(), StatusCode::kUnavailable);
    EXPECT_NE(rows.status().message().find("io_uring"), std::string::npos);
    return nullptr;
  }
};

TEST_P(StoredRows, AreTheStoredOnes) {
  const StoredTable table;
  for (size_t cache_bytes : {size_t{0}, size_t{1} << 20}) {
    const auto rows = Open(table, cache_bytes);
    if (rows == nullptr) GTEST_SKIP() << "no io_uring here";
    const bool ring = rows->io() == "io_uring";
    EXPECT_TRUE(ring ? GetParam() != RowIo::kPread : rows->io() == "pread");
    std::mt19937 random(4);
    for (int step = 0; step < 100; ++step) {
      const size_t count = step % 20 == 0 ? 900 : random() % 40;  // more than the smallest cache
      std::vector<int64_t> ids(count);
      for (int64_t& id : ids) id = static_cast<int64_t>(random() % kRows);
      if (step % 3 != 0) rows->Prefetch(ids);
      std::vector<float> out(count * kCols);
      rows->Gather(ids.data(), static_cast<int64_t>(count), out.data());
      for (size_t i = 0; i < count; ++i) {
        ExpectRow(table.memory(), ids[i], out.data() + i * kCols);
      }
    }
    const RowTableStats stats = rows->stats();
    EXPECT_EQ(stats.errors, 0U);
    EXPECT_EQ(stats.read_bytes, stats.reads * (kCols + kCols / 32));
  }
}

// The bytes that are gone fail the rows that need them, and no others; nothing ends the process.
TEST_P(StoredRows, OfACutFileFailAlone) {
  const StoredTable table;
  for (size_t cache_bytes : {size_t{0}, size_t{1} << 20}) {
    table.Write(table.path());  // whole again
    const auto rows = Open(table, cache_bytes);
    if (rows == nullptr) GTEST_SKIP() << "no io_uring here";
    const int64_t kept[] = {3, 500, 990};
    std::vector<float> out(900 * kCols);
    rows->Gather(kept, 3, out.data());
    for (size_t i = 0; i < 3; ++i) ExpectRow(table.memory(), kept[i], out.data() + i * kCols);
    table.Cut(600);  // the scales are gone, too
    std::vector<int64_t> ids = {3, 500, 990, 4, 999};
    rows->Prefetch(ids);
    rows->Gather(ids.data(), 5, out.data());
    for (size_t i = 0; i < 3; ++i) ExpectRow(table.memory(), ids[i], out.data() + i * kCols);
    for (size_t i = 3; i < 5; ++i) EXPECT_TRUE(std::isnan(out[i * kCols])) << i;
    EXPECT_GE(rows->stats().errors, 2U);
    // More rows than slots: some are read without one.
    ids.resize(900);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i + 50);
    rows->Gather(ids.data(), 900, out.data());
    for (size_t i = 0; i < ids.size(); ++i) {
      const bool held = ids[i] == 500;
      EXPECT_EQ(std::isnan(out[i * kCols]), !held) << ids[i];
    }
  }
}

TEST_P(StoredRows, ComeBackWithTheirFile) {
  const StoredTable table;
  const auto rows = Open(table, 1 << 20);
  if (rows == nullptr) GTEST_SKIP() << "no io_uring here";
  table.Cut(0);
  const int64_t id = 12;
  std::vector<float> out(kCols);
  rows->Gather(&id, 1, out.data());
  EXPECT_TRUE(std::isnan(out[0]));
  table.Write(table.path());
  rows->Gather(&id, 1, out.data());
  ExpectRow(table.memory(), id, out.data());
}

TEST_P(StoredRows, OfAFileThatWasReplacedAreRefused) {
  const StoredTable table;
  table.Write(table.path() + ".new");
  ASSERT_EQ(std::rename((table.path() + ".new").c_str(), table.path().c_str()), 0);
  const auto rows = RowTable::Open(table, table.view(), {.io = GetParam()});
  ASSERT_FALSE(rows.ok());
  EXPECT_NE(rows.status().message().find("was replaced"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(EveryWay, StoredRows,
                         testing::Values(RowIo::kAuto, RowIo::kIoUring, RowIo::kPread));

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
