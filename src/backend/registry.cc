#include "backend/backend.h"
#include "backend/cpu/cpu_backend.h"
#include "base/format.h"

namespace deepinfer {
namespace {

struct Device {
  const char* name;
  Result<std::unique_ptr<Backend>> (*create)(const BackendOptions& options);
};

// Best first: "auto" takes the first device that this machine has.
constexpr Device kDevices[] = {
    {"cpu", cpu::CpuBackend::Create},
};

}  // namespace

Result<std::unique_ptr<Backend>> CreateBackend(const BackendOptions& options) {
  std::string names;
  for (const Device& device : kDevices) {
    if (options.device == "auto" || options.device == device.name) return device.create(options);
    names += Format(", {}", device.name);
  }
  return Invalid(Format("device {}: unknown; use auto{}", options.device, names))
      .WithParam("device");
}

}  // namespace deepinfer
