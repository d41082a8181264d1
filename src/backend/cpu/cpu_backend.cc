#include "backend/cpu/cpu_backend.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <limits>

#include "backend/cpu/stream_copy.h"
#include "base/format.h"
#include "base/topology.h"
#include "tensor/dequantize.h"

namespace deepinfer::cpu {
namespace {

constexpr int kThreadsMax = 1024;
constexpr int64_t kElementsPerChunk = 4096;
// Tables of more rows are fetched by row, never packed.
constexpr int64_t kTableRows = int64_t{1} << 19;
constexpr size_t kHugePage = size_t{2} << 20;
// Copies of at least this much bypass the caches.
constexpr int64_t kStreamBytes = int64_t{256} << 10;

int AvailableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

const RowKernels& RowsOf(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx2:
      return kAvx2Rows;
    case Isa::kAvx512:
    case Isa::kAmx:
      return kAvx512Rows;
#endif
    default:
      return kScalarRows;
  }
}

void Unmap(std::byte* data, size_t bytes) { munmap(data, bytes); }

int64_t RowsPerChunk(int64_t cols) {
  return std::max<int64_t>(1, kElementsPerChunk / std::max<int64_t>(cols, 1));
}

}  // namespace

CpuBackend::CpuBackend(Isa isa, int threads, const BackendOptions& options)
    : weight_cache_bytes_(options.weight_cache_bytes),
      products_(&context_),
      attention_(&context_),
      latent_attention_(&context_, &products_),
      moe_(&context_, &products_),
      sparse_(&context_, &products_),
      compressed_(&context_) {
  context_.isa = isa;
  context_.float32 = options.dtype == ComputeDtype::kFloat32;
  context_.rows = &RowsOf(isa);
  context_.pool = std::make_unique<ComputePool>(threads);
  info_ = {.name = "cpu",
           .isa = std::string(IsaName(isa)),
           .threads = threads,
           .row_io = options.row_io};
}

Result<std::unique_ptr<Backend>> CpuBackend::Create(const BackendOptions& options) {
  DI_ASSIGN(const Isa isa, DetectIsa(options.cpu_isa));
  if (options.threads < 0 || options.threads > kThreadsMax) {
    return Invalid(Format("threads {}: must be 0 (one per available core) to {}", options.threads,
                          kThreadsMax))
        .WithParam("threads");
  }
  if (options.weight_cache_bytes < kWeightCacheAuto) {
    return Invalid(
               Format("weight cache of {} bytes: must be 0 or more", options.weight_cache_bytes))
        .WithParam("weight_cache_bytes");
  }
  const int threads = options.threads == 0 ? AvailableCores() : options.threads;
  return std::unique_ptr<Backend>(new CpuBackend(isa, threads, options));
}

Result<Backend::Buffer> CpuBackend::Allocate(size_t bytes) {
  const size_t size = std::max<size_t>(bytes, 1);
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return Exhausted(
        Format("no address space for {} bytes; lower the context or the cache size", bytes));
  }
  if (size >= 2 * kHugePage) madvise(data, size, MADV_HUGEPAGE);
  return Buffer(static_cast<std::byte*>(data), FreeBuffer{size, &Unmap});
}

Result<std::unique_ptr<PackedMatrix>> CpuBackend::PackOne(const TensorFile& file,
                                                          const TensorView& view) {
  return PackedMatrix::Pack(context_.isa, view, context_.float32, context_.pool.get(), &arena_,
                            &file);
}

Result<std::unique_ptr<Weight>> CpuBackend::Bind(const TensorFile& file, const TensorView& view,
                                                 WeightRole role) {
  auto weight = std::make_unique<CpuWeight>();
  if (role == WeightRole::kVector) {
    DI_ASSIGN(weight->vector, DequantizeTensor(view));
    file.Drop(view);
    weight->rows = static_cast<int64_t>(weight->vector.size());
    weight->cols = 1;
    weight->packed_bytes = weight->vector.size() * sizeof(float);
    return std::unique_ptr<Weight>(std::move(weight));
  }
  DI_ASSIGN(std::unique_ptr<PackedMatrix> matrix, PackOne(file, view));
  weight->rows = matrix->rows();
  weight->cols = matrix->cols();
  weight->experts = matrix->experts();
  weight->packed_bytes = matrix->bytes();
  weight->matrices.push_back(std::move(matrix));
  return std::unique_ptr<Weight>(std::move(weight));
}

// At the first experts: whether they stay packed or pass through a cache.
void CpuBackend::DecideWeightCache(const TensorFile& file, const TensorView& expert) {
  if (cache_decided_) return;
  cache_decided_ = true;
  WeightCacheFacts facts{.available_bytes = ReadTopology().memory_available_bytes,
                         .scaled = HasScaleTensor(expert.dtype)};
  for (const TensorView& view : file.tensors()) {
    if (view.dim(0) <= kTableRows) facts.file_bytes += static_cast<int64_t>(view.bytes);
  }
  const int64_t limit = WeightCacheLimit(weight_cache_bytes_, facts);
  if (limit > 0) context_.weight_cache = std::make_shared<WeightCache>(static_cast<size_t>(limit));
}

// One expert's gate and up projections are needed at the same time.
Status CpuBackend::CheckCacheLimit(const PackedMatrix& matrix, const TensorView& view) const {
  if (context_.weight_cache->limit() >= 2 * matrix.bytes()) return {};
  return Invalid(Format("weight cache of {} bytes: two matrices like {} need {}",
                        context_.weight_cache->limit(), view.name, 2 * matrix.bytes()))
      .WithParam("weight_cache_bytes");
}

Result<std::unique_ptr<Weight>> CpuBackend::BindExperts(const TensorFile& file,
                                                        std::span<const TensorView> experts) {
  if (!experts.empty()) DecideWeightCache(file, experts[0]);
  // What was made in memory would be gone when it is packed.
  const bool stored = std::all_of(experts.begin(), experts.end(),
                                  [&](const TensorView& view) { return file.Holds(view); });
  return BindSeveral(file, experts, stored && experts.size() > 1 ? context_.weight_cache : nullptr);
}

Result<std::unique_ptr<Weight>> CpuBackend::BindSeveral(const TensorFile& file,
                                                        std::span<const TensorView> views,
                                                        std::shared_ptr<WeightCache> cache) {
  if (views.empty()) return Invalid("a layer of experts without a tensor");
  auto weight = std::make_unique<CpuWeight>();
  weight->cache = cache;
  for (const TensorView& view : views) {
    if (view.shape != views[0].shape || view.dtype != views[0].dtype) {
      return Invalid(Format("tensor {}: shape or type differs from {}; the experts of a matrix "
                            "must agree",
                            view.name, views[0].name))
          .WithParam(view.name);
    }
    DI_ASSIGN(std::unique_ptr<PackedMatrix> matrix,
              cache != nullptr ? PackedMatrix::Plan(context_.isa, view, context_.float32)
                               : PackOne(file, view));
    weight->packed_bytes += matrix->bytes();
    if (cache != nullptr) cache->Add(matrix.get(), &file, view);
    weight->matrices.push_back(std::move(matrix));
  }
  if (cache != nullptr) DI_TRY(CheckCacheLimit(*weight->matrices[0], views[0]));
  weight->rows = weight->matrices[0]->rows();
  weight->cols = weight->matrices[0]->cols();
  weight->experts = static_cast<int64_t>(views.size());
  return std::unique_ptr<Weight>(std::move(weight));
}

std::unique_ptr<Activation> CpuBackend::CreateActivation(int64_t cols,
                                                         std::span<const Weight* const> readers) {
  uint32_t formats = 0;
  for (const Weight* reader : readers) formats |= Cpu(*reader).matrix().act_format();
  return std::make_unique<CpuActivation>(cols, formats);
}

void CpuBackend::Embed(const Weight& embedding, const int32_t* token, int tokens, float* out) {
  const PackedMatrix& matrix = Cpu(embedding).matrix();
  const int64_t cols = matrix.cols();
  const int64_t per_chunk = RowsPerChunk(cols);
  const auto chunks = static_cast<int>((tokens + per_chunk - 1) / per_chunk);
  context_.pool->Run(chunks, [&](int chunk, int) {
    const int64_t end = std::min<int64_t>(tokens, (chunk + 1) * per_chunk);
    for (int64_t i = chunk * per_chunk; i < end; ++i) {
      float* row = out + i * cols;
      if (token[i] >= 0 && token[i] < matrix.rows()) {
        matrix.DecodeRow(token[i], row);
      } else {  // shows as a NaN row of this sequence alone
        std::fill(row, row + cols, std::numeric_limits<float>::quiet_NaN());
      }
    }
  });
}

void CpuBackend::NormQuantize(const float* x, const int32_t* row_index, int rows,
                              const Weight* norm, float eps, Activation* out) {
  ActRows& act = Cpu(*out).rows;
  act.Reserve(rows);
  const int64_t cols = act.cols();
  const float* weight = norm != nullptr ? Cpu(*norm).vector.data() : nullptr;
  const int64_t stride = (cols + 15) / 16 * 16;
  float* scratch = norm_scratch_.Reserve(stride * context_.pool->threads());
  const int64_t per_chunk = RowsPerChunk(cols);
  const auto chunks = static_cast<int>((rows + per_chunk - 1) / per_chunk);
  context_.pool->Run(chunks, [&](int chunk, int thread) {
    float* normed = scratch + thread * stride;
    const int64_t end = std::min<int64_t>(rows, (chunk + 1) * per_chunk);
    for (int64_t i = chunk * per_chunk; i < end; ++i) {
      const float* row = x + (row_index != nullptr ? row_index[i] : i) * cols;
      if (weight != nullptr) {
        context_.rows->rms_norm(row, weight, cols, eps, normed);
        row = normed;
      }
      act.SetRow(context_.isa, i, row);
    }
  });
}

bool CpuBackend::NormRow(const float* x, int row, int64_t cols, const Weight& norm, float eps,
                         float* out) {
  if (cols > 0) context_.rows->rms_norm(x + row * cols, Cpu(norm).vector.data(), cols, eps, out);
  return true;
}

void CpuBackend::CopyBlocks(const StepInput& step,
                            std::span<const std::pair<int32_t, int32_t>> pairs) {
  const int64_t bytes = step.layout->block_bytes();
  const auto copy = [&](const std::pair<int32_t, int32_t>& pair) {
    const std::byte* from = step.cache_blocks + pair.first * bytes;
    std::byte* to = step.cache_blocks + pair.second * bytes;
    if (bytes >= kStreamBytes) {
      StreamCopy(from, bytes, to);
    } else {
      std::copy(from, from + bytes, to);
    }
  };
  context_.pool->Run(static_cast<int>(pairs.size()),
                     [&](int i, int) { copy(pairs[static_cast<size_t>(i)]); });
}

void CpuBackend::ParallelRows(int count, void (*body)(void* context, int i), void* context) {
  context_.pool->Run(count, [&](int i, int) { body(context, i); });
}

}  // namespace deepinfer::cpu
