// Rates of packed products: GOP/s (two operations a weight and row) and GB/s of packed bytes, for
// one row (memory bound) to 512 (compute bound). Threads split the weight rows.
//   backend_bench --benchmark_filter='product/Q4_1'
#include <benchmark/benchmark.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/packed_linear.h"
#include "base/check.h"
#include "base/env.h"
#include "tensor/block_formats.h"

namespace deepinfer::cpu {
namespace {

struct Shape {
  const char* name;
  int64_t rows, cols;
};
constexpr Shape kShapes[] = {
    {"smol_qo", 576, 576},     {"smol_up", 1536, 576},   {"smol_down", 576, 1536},
    {"smol_head", 49152, 576}, {"qwen_up", 3072, 1024},  {"qwen_down", 1024, 3072},
    {"v41_up", 2304, 5120},    {"v41_down", 5120, 2304}, {"v41_kv", 512, 5120}};
// Larger than the last-level cache, so that one row reads from memory.
constexpr size_t kWorkingSet = size_t{192} << 20;

// Copies of one matrix, walked in turn as a model walks its layers, and one input.
struct Model {
  PackedArena arena;
  std::vector<std::unique_ptr<PackedMatrix>> copies;
  std::unique_ptr<ActRows> input;
};

std::vector<std::byte> RandomBytes(DType dtype, int64_t count) {
  std::mt19937_64 random(1);
  std::vector<std::byte> bytes(ByteSize(dtype, count).value());
  for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    const uint64_t bits = random() & 0x3f3f3f3f3f3f3f3fULL;  // no NaN in any type
    std::memcpy(bytes.data() + i, &bits, 8);
  }
  return bytes;
}

// Scaled types have scales of 2^-7, FP8 in blocks of 32 x 32.
TensorView MakeView(DType dtype, int64_t rows, int64_t cols, const std::vector<std::byte>& bytes,
                    std::vector<std::byte>* scales) {
  TensorView view = {"bench", dtype, {rows, cols}, bytes.data(), bytes.size()};
  if (!HasScaleTensor(dtype)) return view;
  view.scale_block_rows = dtype == DType::kF8Block ? 32 : 1;
  view.scale_block_cols = 32;
  view.scale_rows = (rows + view.scale_block_rows - 1) / view.scale_block_rows;
  view.scale_cols = (cols + 31) / 32;
  scales->assign(static_cast<size_t>(view.scale_rows * view.scale_cols), std::byte{120});
  view.scale = scales->data();
  return view;
}

Isa BenchIsa() { return DetectIsa(GetEnv("DEEPINFER_CPU_ISA").value_or("")).value(); }

std::unique_ptr<Model> MakeModel(DType dtype, const Shape& shape, int64_t rows) {
  auto model = std::make_unique<Model>();
  const Isa isa = BenchIsa();
  const std::vector<std::byte> bytes = RandomBytes(dtype, shape.rows * shape.cols);
  std::vector<std::byte> scales;
  const TensorView view = MakeView(dtype, shape.rows, shape.cols, bytes, &scales);
  const size_t copies = rows > 32 ? 4 : kWorkingSet / bytes.size() + 1;
  for (size_t i = 0; i < copies; ++i) {
    auto packed = PackedMatrix::Pack(isa, view, false, nullptr, &model->arena);
    DI_CHECK(packed.ok(), "{}", packed.status().message());
    model->copies.push_back(std::move(packed).value());
  }
  model->input = std::make_unique<ActRows>(shape.cols, model->copies[0]->act_format());
  model->input->Reserve(rows);
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(shape.cols));
  for (int64_t i = 0; i < rows; ++i) {
    for (float& v : x) v = normal(random);
    model->input->SetRow(isa, i, x.data());
  }
  return model;
}

// Shared by the threads of one benchmark: thread 0 builds, all use it after the start barrier.
std::unique_ptr<Model> g_model;

void Product(benchmark::State& state, DType dtype, const Shape& shape) {
  const int64_t m = state.range(0);
  if (state.thread_index() == 0) g_model = MakeModel(dtype, shape, m);
  std::vector<float> y;
  int64_t begin = 0, end = 0;
  size_t next = 0;
  for (auto _ : state) {
    if (y.empty()) {
      y.resize(static_cast<size_t>(m * shape.rows));
      const int64_t tile = g_model->copies[0]->tile_rows();
      const int64_t tiles = (shape.rows + tile - 1) / tile;
      begin = tiles * state.thread_index() / state.threads() * tile;
      end = std::min(shape.rows, tiles * (state.thread_index() + 1) / state.threads() * tile);
    }
    const PackedMatrix& w = *g_model->copies[next];
    next = next + 1 == g_model->copies.size() ? 0 : next + 1;
    const int64_t chunk = w.ChunkRows(m, state.threads());
    for (int64_t n = begin; n < end; n += chunk) {
      w.Multiply(*g_model->input, nullptr, m, 0, n, std::min(end, n + chunk), y.data(), shape.rows);
    }
    benchmark::ClobberMemory();
  }
  using benchmark::Counter;
  const double share = static_cast<double>(end - begin) * static_cast<double>(state.iterations());
  const double ops = share * 2.0 * static_cast<double>(m * shape.cols);
  const double bytes =
      share * static_cast<double>(g_model->copies[0]->bytes()) / static_cast<double>(shape.rows);
  state.counters["GOP/s"] = Counter(ops * 1e-9, Counter::kIsRate);
  state.counters["GB/s"] = Counter(bytes * 1e-9, Counter::kIsRate);
}

// What one row can reach at most: plain sequential reads of memory beyond the caches.
void ReadMemory(benchmark::State& state) {
  static std::vector<uint64_t> data;
  if (state.thread_index() == 0) data.assign(kWorkingSet * 2 / 8, 1);
  const size_t share = kWorkingSet * 2 / 8 / static_cast<size_t>(state.threads());
  for (auto _ : state) {
    const uint64_t* p = data.data() + share * static_cast<size_t>(state.thread_index());
    uint64_t a = 0, b = 0, c = 0, d = 0;
    for (size_t i = 0; i < share; i += 8) {  // one load a line is enough
      a += p[i];
      b ^= p[i + 2];
      c += p[i + 4];
      d ^= p[i + 6];
    }
    benchmark::DoNotOptimize(a + b + c + d);
  }
  state.counters["GB/s"] = benchmark::Counter(
      static_cast<double>(share * 8) * static_cast<double>(state.iterations()) * 1e-9,
      benchmark::Counter::kIsRate);
}

void QuantizeRows(benchmark::State& state, uint32_t format) {
  constexpr int64_t kCols = 1536, kRows = 64;
  const Isa isa = BenchIsa();
  ActRows rows(kCols, format);
  rows.Reserve(kRows);
  std::vector<float> x(kCols * kRows);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 97) - 48.0F;
  for (auto _ : state) {
    for (int64_t i = 0; i < kRows; ++i) rows.SetRow(isa, i, x.data() + i * kCols);
    benchmark::ClobberMemory();
  }
  state.counters["Gelement/s"] = benchmark::Counter(
      static_cast<double>(kCols * kRows) * static_cast<double>(state.iterations()) * 1e-9,
      benchmark::Counter::kIsRate);
}

void PackMatrix(benchmark::State& state, DType dtype) {
  const int64_t rows = 8192, cols = 1536;
  const std::vector<std::byte> bytes = RandomBytes(dtype, rows * cols);
  std::vector<std::byte> scales;
  const TensorView view = MakeView(dtype, rows, cols, bytes, &scales);
  const Isa isa = BenchIsa();
  for (auto _ : state) {
    benchmark::DoNotOptimize(PackedMatrix::Pack(isa, view, false, nullptr).ok());
  }
  state.counters["GB/s"] = benchmark::Counter(
      static_cast<double>(bytes.size()) * static_cast<double>(state.iterations()) * 1e-9,
      benchmark::Counter::kIsRate);
}

const int kRegistered = [] {
  for (DType dtype : {DType::kQ4_1, DType::kQ8_0, DType::kQ4_0, DType::kBF16, DType::kF16,
                      DType::kF32, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kQ5_0,
                      DType::kQ5_1, DType::kMXFP4, DType::kF8Block, DType::kF4Pairs}) {
    const std::string type(Info(dtype).name);
    for (const Shape& shape : kShapes) {
      if (shape.cols % Info(dtype).block_elements != 0) continue;
      auto* product = benchmark::RegisterBenchmark(
          ("product/" + type + "/" + shape.name).c_str(),
          [dtype, &shape](benchmark::State& state) { Product(state, dtype, shape); });
      product->ArgName("m")->Arg(1)->Arg(4)->Arg(8)->Arg(32)->Arg(512)->Threads(1)->Threads(2);
      product->UseRealTime()->MinTime(0.2);
    }
    benchmark::RegisterBenchmark(("pack/" + type).c_str(), [dtype](benchmark::State& state) {
      PackMatrix(state, dtype);
    })->UseRealTime();
  }
  benchmark::RegisterBenchmark("read_memory", ReadMemory)->Threads(1)->Threads(2)->UseRealTime();
  for (auto [name, format] :
       {std::pair{"quantize/q8", uint32_t{kActQ8}}, {"quantize/bf16", kActBF16}}) {
    benchmark::RegisterBenchmark(
        name, [f = uint32_t{format}](benchmark::State& state) { QuantizeRows(state, f); });
  }
  return 0;
}();

}  // namespace
}  // namespace deepinfer::cpu
