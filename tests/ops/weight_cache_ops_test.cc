// Experts that are packed when first chosen, under limits that hold few of them: the same bits as
// experts packed when bound; and damage that shows only in the rows that choose it.
#include <gtest/gtest.h>

#include <cmath>

#include "backend/backend.h"
#include "base/format.h"
#include "tests/harness/memory_tensors.h"

namespace deepinfer {
namespace {

constexpr int kRows = 40, kExperts = 12, kTopK = 3;
constexpr int64_t kHidden = 64, kInter = 96;

struct Experts {
  MemoryTensors tensors;
  std::vector<TensorView> views;

  Experts(DType dtype, uint64_t seed, int64_t out, int64_t in, int damaged) {
    for (int e = 0; e < kExperts; ++e) {
      std::vector<float> values = RandomFloats(seed + static_cast<uint64_t>(e), out * in);
      views.push_back(tensors.AddScaled(Format("expert{}", e), dtype, out, in, values));
      if (e == damaged) *tensors.last_scales() = std::byte{255};
    }
  }
};

struct Options {
  DType dtype = DType::kF4Pairs;
  int64_t cache_bytes = 0;
  ComputeDtype arithmetic = ComputeDtype::kAuto;
  int damaged = -1;
};

// Two layers that share the cache, walked three times; the outputs of every walk.
Result<std::vector<float>> Walk(const Options& options) {
  DI_ASSIGN(const std::unique_ptr<Backend> backend,
            CreateBackend({.device = "cpu",
                           .threads = 2,
                           .dtype = options.arithmetic,
                           .weight_cache_bytes = options.cache_bytes}));
  MemoryTensors routers;
  const TensorView& router_view =
      routers.Add("router", DType::kF32, {kExperts, kHidden}, RandomFloats(1, kExperts * kHidden));
  DI_ASSIGN(const auto router, backend->Bind(routers, router_view, WeightRole::kLinear));
  struct Layer {
    std::unique_ptr<Experts> sources[3];
    std::unique_ptr<Weight> gate, up, down;
  };
  Layer layers[2];
  for (uint64_t l = 0; l < 2; ++l) {
    Layer& layer = layers[l];
    for (uint64_t i = 0; i < 3; ++i) {
      layer.sources[i] =
          std::make_unique<Experts>(options.dtype, 100 * l + 1000 * i, i < 2 ? kInter : kHidden,
                                    i < 2 ? kHidden : kInter, i == 2 ? options.damaged : -1);
    }
    DI_ASSIGN(layer.gate, backend->BindExperts(layer.sources[0]->tensors, layer.sources[0]->views));
    DI_ASSIGN(layer.up, backend->BindExperts(layer.sources[1]->tensors, layer.sources[1]->views));
    DI_ASSIGN(layer.down, backend->BindExperts(layer.sources[2]->tensors, layer.sources[2]->views));
  }
  const Weight* readers[] = {router.get(), layers[0].gate.get(), layers[0].up.get()};
  const auto input = backend->CreateActivation(kHidden, readers);
  const std::vector<float> x = RandomFloats(7, kRows * kHidden);
  backend->NormQuantize(x.data(), nullptr, kRows, nullptr, 0.0F, input.get());
  std::vector<float> all;
  for (int walk = 0; walk < 3; ++walk) {
    for (const Layer& layer : layers) {
      std::vector<float> out(kRows * kHidden, 0.5F);
      backend->Moe({.input = input.get(),
                    .rows = kRows,
                    .router = router.get(),
                    .gate = layer.gate.get(),
                    .up = layer.up.get(),
                    .down = layer.down.get(),
                    .top_k = kTopK,
                    .out = out.data()});
      all.insert(all.end(), out.begin(), out.end());
    }
  }
  return all;
}

TEST(WeightCacheOps, AnyLimitGivesTheBitsOfExpertsPackedAtBind) {
  for (DType dtype : {DType::kF4Pairs, DType::kF8Block}) {
    for (ComputeDtype arithmetic : {ComputeDtype::kAuto, ComputeDtype::kFloat32}) {
      const auto want = Walk({.dtype = dtype, .arithmetic = arithmetic});
      ASSERT_TRUE(want.ok());
      // One expert packed: at most 64 * 96 floats.
      for (int64_t limit : {int64_t{60} << 10, int64_t{200} << 10, int64_t{1} << 40}) {
        const auto got = Walk({.dtype = dtype, .cache_bytes = limit, .arithmetic = arithmetic});
        ASSERT_TRUE(got.ok()) << got.status().message();
        EXPECT_EQ(*want, *got) << Info(dtype).name << " " << limit;
      }
    }
  }
}

TEST(WeightCacheOps, DamageReachesOnlyRowsThatChooseIt) {
  EXPECT_FALSE(Walk({.damaged = 4}).ok());  // packed at bind: named at once
  const auto want = Walk({.cache_bytes = 40 << 10});
  const auto got = Walk({.cache_bytes = 40 << 10, .damaged = 4});
  ASSERT_TRUE(want.ok() && got.ok());
  int failed = 0;
  for (size_t row = 0; row < got->size() / kHidden; ++row) {
    const bool bad = std::isnan((*got)[row * kHidden]);
    failed += bad ? 1 : 0;
    for (size_t i = row * kHidden; i < (row + 1) * kHidden; ++i) {
      if (bad) {
        EXPECT_TRUE(std::isnan((*got)[i]));
      } else {
        EXPECT_EQ((*got)[i], (*want)[i]);
      }
    }
  }
  EXPECT_GT(failed, 0);
  EXPECT_LT(failed, 6 * kRows);
}

TEST(WeightCacheOps, LimitsThatHoldNoExpertAreErrors) {
  const auto run = Walk({.cache_bytes = 1000});
  ASSERT_FALSE(run.ok());
  EXPECT_NE(run.status().message().find("weight cache of 1000 bytes"), std::string::npos);
  EXPECT_FALSE(CreateBackend({.weight_cache_bytes = -5}).ok());
  EXPECT_TRUE(Walk({.cache_bytes = kWeightCacheAuto}).ok());
}

}  // namespace
}  // namespace deepinfer
