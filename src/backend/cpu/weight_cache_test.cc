#include "backend/cpu/weight_cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <random>

#include "base/format.h"
#include "tensor/scaled_tensor.h"

namespace deepinfer::cpu {
namespace {

constexpr int64_t kRows = 40, kCols = 96;

// Matrices of packed FP4 that a cache packs, and twins packed at once.
class Tensors final : public TensorFile {
 public:
  explicit Tensors(int count, int64_t rows = kRows) {
    std::mt19937 random(1);
    for (int i = 0; i < count; ++i) {
      auto& codes = bytes_.emplace_back(static_cast<size_t>(rows * kCols / 2));
      for (std::byte& b : codes) b = static_cast<std::byte>(random());
      auto& scales = bytes_.emplace_back(static_cast<size_t>(rows * kCols / 32));
      for (std::byte& b : scales) b = static_cast<std::byte>(120 + random() % 8);
      views_.push_back(
          WithScale(
              {Format("expert{}", i), DType::kI8, {rows, kCols / 2}, codes.data(), codes.size()},
              {"scale", DType::kF8_E8M0, {rows, kCols / 32}, scales.data(), scales.size()})
              .value());
    }
  }
  const TensorView* Find(std::string_view) const override { return nullptr; }
  const std::vector<TensorView>& tensors() const override { return views_; }
  void Drop(const TensorView&) const override { ++drops; }
  size_t file_bytes() const override { return 0; }

  std::byte* scales(int i) { return bytes_[static_cast<size_t>(2 * i + 1)].data(); }
  mutable int drops = 0;

 private:
  std::deque<std::vector<std::byte>> bytes_;
  std::vector<TensorView> views_;
};

class WeightCacheTest : public testing::Test {
 protected:
  void Make(int count, size_t fitting, size_t streaming = 0) {
    tensors_ = std::make_unique<Tensors>(count);
    bytes_ = PackedMatrix::PackedBytes(tensors_->tensors()[0], false);
    cache_ = std::make_unique<WeightCache>(fitting * bytes_, streaming * bytes_);
    for (const TensorView& view : tensors_->tensors()) {
      matrices_.push_back(PackedMatrix::Plan(Isa::kScalar, view, false).value());
      cache_->Add(matrices_.back().get(), tensors_.get(), view);
    }
  }

  std::vector<float> Multiply(const PackedMatrix& matrix, int64_t n = kRows) {
    ActRows rows(kCols, kActQ8);
    rows.Reserve(1);
    std::vector<float> x(kCols), y(static_cast<size_t>(n));
    for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
    rows.SetRow(Isa::kScalar, 0, x.data());
    matrix.Multiply(rows, nullptr, 1, 0, 0, n, y.data(), n);
    return y;
  }

  void ExpectPacked(int i) {
    const TensorView& view = tensors_->tensors()[static_cast<size_t>(i)];
    const auto twin = PackedMatrix::Pack(Isa::kScalar, view, false, nullptr).value();
    EXPECT_EQ(Multiply(*twin), Multiply(*matrices_[static_cast<size_t>(i)])) << i;
  }
  int64_t Bytes(size_t matrices) const { return static_cast<int64_t>(matrices * bytes_); }

  // Prepares these matrices one by one in one call.
  size_t Prepare(std::initializer_list<int> list) {
    std::vector<WeightCache::Need> needs;
    for (int i : list) needs.push_back({matrices_[static_cast<size_t>(i)].get(), nullptr});
    return cache_->Prepare(needs, nullptr);
  }
  bool Loaded(int i) const { return matrices_[static_cast<size_t>(i)]->loaded(); }

  std::unique_ptr<Tensors> tensors_;
  std::unique_ptr<WeightCache> cache_;
  std::vector<std::unique_ptr<PackedMatrix>> matrices_;
  size_t bytes_ = 0;
};

TEST(WeightCacheLimit, FollowsTheFiles) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  const auto limit = [](int64_t files, int64_t available, bool scaled) {
    return WeightCacheLimit(kWeightCacheAuto, {files * kGiB, available * kGiB, scaled});
  };
  EXPECT_EQ(limit(4, 64, true), 0);  // quick enough at load
  EXPECT_EQ(limit(8, 64, true), 9 * kGiB);
  EXPECT_EQ(limit(17, 64, false), 0);  // Qwen3-MoE
  EXPECT_EQ(limit(17, 0, false), 0);   // memory unknown
  EXPECT_EQ(limit(16, 0, true), 18 * kGiB);
  for (const bool scaled : {false, true}) {
    const int64_t beyond = limit(60, 64, scaled);
    EXPECT_GT(beyond, 25 * kGiB);
    EXPECT_LT(beyond, 26 * kGiB);
  }
  EXPECT_EQ(WeightCacheLimit(0, {60 * kGiB, 1, true}), 0);
  EXPECT_EQ(WeightCacheLimit(123, {60 * kGiB, 1, false}), 123);
}

TEST_F(WeightCacheTest, PacksWhatIsNeededAndDropsTheLeastUsed) {
  Make(5, 3);
  EXPECT_EQ(Prepare({0, 1, 2}), 3U);
  for (int i : {0, 1, 2}) ExpectPacked(i);
  EXPECT_EQ(tensors_->drops, 3);
  EXPECT_EQ(Prepare({0}), 1U);
  EXPECT_EQ(Prepare({3}), 1U);  // 1 is the oldest
  EXPECT_TRUE(Loaded(0) && !Loaded(1) && Loaded(2) && Loaded(3));
  EXPECT_EQ(Prepare({1, 2}), 2U);  // 2 stays although it was the oldest: this call needs it
  EXPECT_TRUE(!Loaded(0) && Loaded(1) && Loaded(2) && Loaded(3));
  for (int i : {1, 2, 3}) ExpectPacked(i);
  const WeightCacheStats stats = cache_->stats();
  EXPECT_EQ(stats.limit_bytes, Bytes(3));
  EXPECT_EQ(stats.known_bytes, Bytes(5));
  EXPECT_EQ(stats.touched_bytes, Bytes(4));
  EXPECT_EQ(stats.bytes, Bytes(3));
  EXPECT_EQ(stats.lookups, 7);
  EXPECT_EQ(stats.hits, 2);
  EXPECT_EQ(stats.loads, 5);
  EXPECT_EQ(stats.evictions, 2);
  EXPECT_EQ(stats.streams, 0);
}

TEST_F(WeightCacheTest, NeedsBeyondTheLimitComeInGroups) {
  Make(7, 3);
  std::vector<WeightCache::Need> needs;
  for (int i = 0; i < 6; i += 2) {
    needs.push_back(
        {matrices_[static_cast<size_t>(i)].get(), matrices_[static_cast<size_t>(i + 1)].get()});
  }
  std::span<const WeightCache::Need> rest = needs;
  while (!rest.empty()) {
    ASSERT_EQ(cache_->Prepare(rest, nullptr), 1U);
    EXPECT_TRUE(rest[0].matrix->loaded() && rest[0].pair->loaded());
    EXPECT_LE(cache_->stats().bytes, Bytes(3));
    rest = rest.subspan(1);
  }
  EXPECT_EQ(Prepare({6, 6, 6, 6}), 4U);  // counted once
}

TEST_F(WeightCacheTest, EveryOrderGivesTheSameBits) {
  Make(9, 4);
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    const int a = static_cast<int>(random() % 9), b = static_cast<int>(random() % 9);
    ASSERT_EQ(Prepare({a, b}), 2U);
    ExpectPacked(a);
    ExpectPacked(b);
    ASSERT_LE(cache_->stats().bytes, Bytes(4));
  }
}

TEST_F(WeightCacheTest, DamageGivesNanNotAnEnd) {
  Make(3, 2);
  tensors_->scales(1)[7] = std::byte{255};
  EXPECT_EQ(Prepare({0, 1}), 2U);
  ExpectPacked(0);
  for (float v : Multiply(*matrices_[1])) EXPECT_TRUE(std::isnan(v));
  EXPECT_EQ(Prepare({2, 0}), 2U);  // over the place of the damaged one
  ExpectPacked(2);
  ExpectPacked(0);
}

TEST_F(WeightCacheTest, RemovedMatricesLeaveTheCache) {
  Make(4, 2);
  EXPECT_EQ(Prepare({0, 1}), 2U);
  cache_->Remove(matrices_[0].get());
  matrices_[0].reset();
  EXPECT_EQ(cache_->stats().bytes, Bytes(1));
  EXPECT_EQ(cache_->stats().known_bytes, Bytes(3));
  EXPECT_EQ(Prepare({2, 3}), 2U);
  ExpectPacked(2);
  ExpectPacked(3);
  EXPECT_FALSE(Loaded(1));
}

TEST_F(WeightCacheTest, TheFirstUsesStream) {
  Make(6, 3, 2);
  EXPECT_EQ(Prepare({0, 1, 2}), 2U);  // so many may stream at once
  for (int i : {0, 1}) {
    EXPECT_FALSE(Loaded(i));
    ExpectPacked(i);
  }
  EXPECT_FALSE(cache_->Release(nullptr));
  EXPECT_EQ(tensors_->drops, 2);
  EXPECT_EQ(cache_->stats().bytes, 0);
  EXPECT_EQ(Prepare({0, 2}), 2U);
  EXPECT_FALSE(Loaded(0) || Loaded(2));
  for (int i : {0, 2}) ExpectPacked(i);
  EXPECT_EQ(Prepare({0, 2}), 2U);  // releases by itself; 0 is packed now
  EXPECT_TRUE(Loaded(0) && !Loaded(2));
  for (int i : {0, 2}) ExpectPacked(i);
  EXPECT_EQ(Prepare({0, 3}), 2U);
  for (int i : {0, 3}) ExpectPacked(i);
  cache_->Release(nullptr);
  const WeightCacheStats stats = cache_->stats();
  EXPECT_EQ(stats.streams, 6);
  EXPECT_EQ(stats.loads, 1);
  EXPECT_EQ(stats.hits, 1);
  EXPECT_EQ(stats.lookups, 8);
  EXPECT_EQ(stats.touched_bytes, Bytes(4));
  EXPECT_EQ(stats.bytes, Bytes(1));
}

TEST_F(WeightCacheTest, ManyRowsArePackedAtOnce) {
  Make(2, 2, 2);
  const WeightCache::Need needs[] = {{matrices_[0].get(), matrices_[1].get(), 49}};
  EXPECT_EQ(cache_->Prepare(needs, nullptr), 1U);
  EXPECT_TRUE(Loaded(0) && Loaded(1));
  ExpectPacked(0);
}

TEST_F(WeightCacheTest, DamageThatStreamsIsTold) {
  Make(2, 2, 2);
  tensors_->scales(1)[0] = std::byte{255};
  EXPECT_EQ(Prepare({0, 1}), 2U);
  ExpectPacked(0);
  Multiply(*matrices_[1]);
  EXPECT_TRUE(cache_->Release(nullptr));
  EXPECT_TRUE(matrices_[1]->damaged() && !matrices_[0]->damaged());
  for (int i = 0; i < WeightCache::kStreamsMax; ++i) EXPECT_EQ(Prepare({0, 1}), 2U);
  EXPECT_TRUE(Loaded(0) && Loaded(1));
  ExpectPacked(0);
  for (float v : Multiply(*matrices_[1])) EXPECT_TRUE(std::isnan(v));
}

// Slots of two sizes: what one leaves makes room for the other.
TEST_F(WeightCacheTest, SlotsOfOtherSizesMakeRoom) {
  Make(4, 2);
  const Tensors wide(1, 3 * kRows);
  const TensorView& view = wide.tensors()[0];
  const auto matrix = PackedMatrix::Plan(Isa::kScalar, view, false).value();
  WeightCache cache(matrix->bytes(), 0);
  cache.Add(matrix.get(), &wide, view);
  std::vector<WeightCache::Need> small;
  for (size_t i = 0; i < matrices_.size(); ++i) {
    cache_->Remove(matrices_[i].get());
    cache.Add(matrices_[i].get(), tensors_.get(), tensors_->tensors()[i]);
    small.push_back({matrices_[i].get(), nullptr});
  }
  const WeightCache::Need large[] = {{matrix.get(), nullptr}};
  const auto twin = PackedMatrix::Pack(Isa::kScalar, view, false, nullptr).value();
  for (int round = 0; round < 20; ++round) {
    EXPECT_EQ(cache.Prepare(std::span(small).subspan(round % 2, 2), nullptr), 2U);
    EXPECT_FALSE(matrix->loaded());
    ExpectPacked(1);
    EXPECT_EQ(cache.Prepare(large, nullptr), 1U);
    EXPECT_FALSE(Loaded(1));
    EXPECT_EQ(Multiply(*matrix, 3 * kRows), Multiply(*twin, 3 * kRows));
    EXPECT_LE(cache.stats().bytes, cache.stats().limit_bytes);
  }
  for (const auto& m : matrices_) cache.Remove(m.get());
  cache.Remove(matrix.get());
  EXPECT_EQ(cache.stats().bytes, 0);
}

}  // namespace
}  // namespace deepinfer::cpu
