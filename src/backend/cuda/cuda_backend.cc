#include "backend/cuda/cuda_backend.h"

#include <sched.h>

#include <algorithm>
#include <string>

#include "backend/cuda/weight_binding.h"
#include "base/check.h"
#include "base/format.h"

namespace deepinfer::cuda {
namespace {

constexpr int kThreadsMax = 1024;
constexpr int kThreadsAuto = 16;  // they only sample

int AvailableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

void FreeDevice(std::byte* data, size_t /*bytes*/) { cudaFree(data); }
void FreePinned(std::byte* data, size_t /*bytes*/) { cudaFreeHost(data); }

// The name of the card, if this build has kernels for it.
Result<std::string> FindCard() {
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count == 0) error = cudaErrorNoDevice;
  if (error != cudaSuccess) {
    return Internal(Format("device cuda: {}; use --device cpu where there is no NVIDIA card",
                           cudaGetErrorString(error)))
        .WithParam("device");
  }
  cudaDeviceProp card;
  DI_TRY(DeviceError(cudaGetDeviceProperties(&card, 0), "device cuda"));
  if (!((card.major == 9 || card.major == 10) && card.minor == 0)) {
    return Internal(Format("device cuda: {} has compute capability {}.{}; this build has kernels "
                           "for 9.0 and 10.0",
                           card.name, card.major, card.minor))
        .WithParam("device");
  }
  return std::string(card.name);
}

}  // namespace

CudaBackend::CudaBackend(int threads, const BackendOptions& options)
    : memory_(options.memory),
      pool_(threads),
      attention_(&context_),
      latent_(&context_),
      moe_(&context_),
      sparse_(&context_),
      compressed_(&context_) {
  context_.float32 = options.dtype == ComputeDtype::kFloat32;
  info_ = {.name = "cuda",
           .isa = "",
           .threads = threads,
           .row_io = options.row_io,
           .host_memory = memory_ == BackendOptions::Memory::kHost};
}

CudaBackend::~CudaBackend() {
  cudaStreamSynchronize(context_.stream);
  cudaStreamDestroy(context_.stream);
}

Result<std::unique_ptr<Backend>> CudaBackend::Create(const BackendOptions& options) {
  DI_ASSIGN(const std::string card, FindCard());
  if (options.threads < 0 || options.threads > kThreadsMax) {
    return Invalid(Format("threads {}: must be 0 (one per available core) to {}", options.threads,
                          kThreadsMax))
        .WithParam("threads");
  }
  const int threads =
      options.threads == 0 ? std::min(AvailableCores(), kThreadsAuto) : options.threads;
  std::unique_ptr<CudaBackend> backend(new CudaBackend(threads, options));
  backend->info_.isa = card;
  DI_TRY(DeviceError(cudaStreamCreateWithFlags(&backend->context_.stream, cudaStreamNonBlocking),
                     "device cuda"));
  return std::unique_ptr<Backend>(std::move(backend));
}

Result<Backend::Buffer> CudaBackend::Allocate(size_t bytes) {
  if (memory_ == BackendOptions::Memory::kHost) return AllocateShared(bytes);
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, std::max<size_t>(bytes, 1));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // or the next launch reports it
    return Exhausted(
        Format("{} bytes of device memory are not free; lower the context or the "
               "cache size",
               bytes));
  }
  DI_TRY(DeviceError(error, "device memory"));
  Buffer buffer(static_cast<std::byte*>(data), FreeBuffer{bytes, &FreeDevice});
  DI_TRY(DeviceError(cudaMemsetAsync(data, 0, bytes, context_.stream), "device memory"));
  return buffer;
}

Result<Backend::Buffer> CudaBackend::AllocateShared(size_t bytes) {
  void* data = nullptr;
  const cudaError_t error =
      cudaHostAlloc(&data, std::max<size_t>(bytes, 1), cudaHostAllocMapped | cudaHostAllocPortable);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return Exhausted(Format("{} bytes of pinned memory are not free", bytes));
  }
  DI_TRY(DeviceError(error, "pinned memory"));
  std::memset(data, 0, bytes);
  return Buffer(static_cast<std::byte*>(data), FreeBuffer{bytes, &FreePinned});
}

int64_t CudaBackend::free_bytes() const {
  size_t free_bytes = 0, total = 0;
  MustWork(cudaMemGetInfo(&free_bytes, &total), "memory of the device");
  return static_cast<int64_t>(free_bytes);
}

void CudaBackend::Copy(void* to, const void* from, size_t bytes) {
  MustWork(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, context_.stream), "copy");
  if (memory_ == BackendOptions::Memory::kHost) Synchronize();
}

void CudaBackend::Synchronize() {
  MustWork(cudaGetLastError(), "a launch on the device");
  MustWork(cudaStreamSynchronize(context_.stream), "the device");
}

Result<std::unique_ptr<Weight>> CudaBackend::Bind(const TensorFile& file, const TensorView& view,
                                                  WeightRole role) {
  Result<std::unique_ptr<Weight>> weight =
      role == WeightRole::kVector ? BindVector(context_, view) : BindMatrices(context_, {&view, 1});
  file.Drop(view);
  return weight;
}

Result<std::unique_ptr<Weight>> CudaBackend::BindExperts(const TensorFile& file,
                                                         std::span<const TensorView> experts) {
  Result<std::unique_ptr<Weight>> weight = BindMatrices(context_, experts);
  for (const TensorView& view : experts) file.Drop(view);
  return weight;
}

std::unique_ptr<Activation> CudaBackend::CreateActivation(int64_t cols,
                                                          std::span<const Weight* const> readers) {
  auto activation = std::make_unique<CudaActivation>();
  activation->cols = cols;
  for (const Weight* reader : readers) {
    bool& has =
        StoredOf(*reader).type == kStoredF32 ? activation->has_float32 : activation->has_bf16;
    has = true;
  }
  return activation;
}

void CudaBackend::Embed(const Weight& embedding, const int32_t* token, int tokens, float* out) {
  EmbedRows(StoredOf(embedding), token, tokens, out, context_.stream);
}

void CudaBackend::NormQuantize(const float* x, const int32_t* row_index, int rows,
                               const Weight* norm, float eps, Activation* out) {
  SetInput(context_, x, row_index, rows, Vector(norm), eps, out);
}

void CudaBackend::Linear(const LinearArgs& args) {
  if (args.rows == 0) return;
  const bool paired = args.epilogue == Epilogue::kSiluMul;
  DI_CHECK(args.outputs.size() == (paired ? 1 : args.weights.size()) &&
               (!paired || args.weights.size() == 2),
           "{} outputs for {} weights", args.outputs.size(), args.weights.size());
  for (size_t i = 0; i < args.outputs.size(); ++i) {
    ProductAt at{};
    at.matrix = StoredOf(*args.weights[i]);
    at.input = InputOf(*args.input, at.matrix);
    at.groups = 1;
    at.rows = args.rows;
    at.bias = args.biases.empty() ? nullptr : Vector(args.biases[i]);
    at.epilogue = args.epilogue == Epilogue::kStore ? kProductStore
                  : args.epilogue == Epilogue::kAdd ? kProductAdd
                                                    : kProductSiluMul;
    at.gate_limit = args.gate_limit;
    at.out = args.outputs[i];
    at.out_stride = at.matrix.rows;
    if (paired) {
      at.pair = StoredOf(*args.weights[1]);
      at.pair_bias = args.biases.empty() ? nullptr : Vector(args.biases[1]);
      DI_CHECK(at.pair.type == at.matrix.type, "gate and up are stored differently");
    }
    RunProduct(at, context_.stream);
  }
}

void CudaBackend::CopyBlocks(const StepInput& step,
                             std::span<const std::pair<int32_t, int32_t>> pairs) {
  const int64_t bytes = step.layout->block_bytes();
  for (const auto& [from, to] : pairs) {
    Copy(step.cache_blocks + to * bytes, step.cache_blocks + from * bytes,
         static_cast<size_t>(bytes));
  }
}

void CudaBackend::ParallelRows(int count, void (*body)(void* context, int i), void* context) {
  Synchronize();
  pool_.Run(count, [&](int i, int) { body(context, i); });
}

}  // namespace deepinfer::cuda
