#include "backend/backend.h"
#include "backend/cpu/cpu_backend.h"
#include "base/format.h"
#ifdef DI_CUDA
#include "backend/cuda/cuda_backend.h"
#endif

namespace deepinfer {
namespace {

struct Device {
  const char* name;
  Result<std::unique_ptr<Backend>> (*create)(const BackendOptions& options);
};

#ifndef DI_CUDA
Result<std::unique_ptr<Backend>> RefuseCuda(const BackendOptions& /*options*/) {
  return Internal("device cuda: this program was built without it; build with `make PRESET=cuda`")
      .WithParam("device");
}
#endif

// Best first: "auto" takes the first device that this machine has, the processor at last.
constexpr Device kDevices[] = {
#ifdef DI_CUDA
    {"cuda", cuda::CudaBackend::Create},
#else
    {"cuda", RefuseCuda},
#endif
    {"cpu", cpu::CpuBackend::Create},
};

}  // namespace

Result<std::unique_ptr<Backend>> CreateBackend(const BackendOptions& options) {
  std::string names;
  for (const Device& device : kDevices) {
    names += Format(", {}", device.name);
    if (options.device == device.name) return device.create(options);
  }
  if (options.device != "auto") {
    return Invalid(Format("device {}: unknown; use auto{}", options.device, names))
        .WithParam("device");
  }
  // An instruction set is one of the processor's.
  for (const Device& device : std::span(kDevices).first(options.cpu_isa.empty() ? 1 : 0)) {
    Result<std::unique_ptr<Backend>> backend = device.create(options);
    if (backend.ok() || backend.status().code() != StatusCode::kInternal) return backend;
  }
  return std::end(kDevices)[-1].create(options);
}

}  // namespace deepinfer
