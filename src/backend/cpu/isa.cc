#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "backend/cpu/kernels.h"
#include "backend/cpu/packed_linear.h"
#include "base/check.h"
#include "base/format.h"

namespace deepinfer::cpu {
namespace {

#if defined(__x86_64__)
struct Registers {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers CpuId(unsigned leaf, unsigned subleaf) {
  Registers r;
  if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return {};
  return r;
}

bool Has(unsigned word, unsigned mask) { return (word & mask) == mask; }
constexpr unsigned Bit(int i) { return 1U << i; }

// State that the operating system saves (XCR0); zero without XSAVE.
unsigned SavedState() {
  constexpr int kOsXsave = 27;
  if (!Has(CpuId(1, 0).ecx, Bit(kOsXsave))) return 0;
  unsigned low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

bool HasAvx2() {
  constexpr unsigned kFma = Bit(12), kF16c = Bit(29), kAvx = Bit(28);  // 1: ecx
  constexpr unsigned kBmi1 = Bit(3), kAvx2 = Bit(5), kBmi2 = Bit(8);   // 7.0: ebx
  constexpr unsigned kYmm = Bit(1) | Bit(2);                           // XCR0
  return Has(CpuId(1, 0).ecx, kFma | kF16c | kAvx) && Has(CpuId(7, 0).ebx, kBmi1 | kAvx2 | kBmi2) &&
         Has(SavedState(), kYmm);
}

bool HasAvx512() {
  constexpr unsigned kEbx = Bit(16) | Bit(17) | Bit(28) | Bit(30) | Bit(31);  // F DQ CD BW VL
  constexpr unsigned kEcx = Bit(1) | Bit(11);                                 // VBMI VNNI
  constexpr unsigned kBf16 = Bit(5);                                          // 7.1: eax
  constexpr unsigned kZmm = Bit(5) | Bit(6) | Bit(7);                         // XCR0
  const Registers leaf7 = CpuId(7, 0);
  return HasAvx2() && Has(leaf7.ebx, kEbx) && Has(leaf7.ecx, kEcx) && Has(CpuId(7, 1).eax, kBf16) &&
         Has(SavedState(), kZmm);
}

// The tiles need a permission of the kernel, asked for once per process.
bool HasAmx() {
  constexpr unsigned kEdx = Bit(22) | Bit(24) | Bit(25);  // BF16 TILE INT8
  constexpr unsigned kTiles = Bit(17) | Bit(18);          // XCR0
  if (!HasAvx512() || !Has(CpuId(7, 0).edx, kEdx) || !Has(SavedState(), kTiles)) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

bool Available(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return true;
#if defined(__x86_64__)
    case Isa::kAvx2:
      return HasAvx2();
    case Isa::kAvx512:
      return HasAvx512();
    case Isa::kAmx:
      return HasAmx();
#else
    default:
      return false;
#endif
  }
  return false;
}

constexpr Isa kBestFirst[] = {Isa::kAmx, Isa::kAvx512, Isa::kAvx2, Isa::kScalar};

}  // namespace

std::string_view IsaName(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAmx:
      return "amx";
  }
  return "unknown";
}

Result<Isa> DetectIsa(std::string_view forced) {
  std::string available;
  for (Isa isa : kBestFirst) {
    if (!Available(isa)) {
      if (forced != IsaName(isa)) continue;
      available.clear();
      for (Isa other : kBestFirst) {
        if (Available(other)) available += Format(" {}", IsaName(other));
      }
      return Invalid(
          Format("cpu isa {}: this processor (or its operating system) lacks it; it has:{}", forced,
                 available));
    }
    if (forced.empty() || forced == IsaName(isa)) return isa;
  }
  return Invalid(
      Format("cpu isa {}: unknown; use amx, avx512, avx2 or scalar, or leave it out to "
             "take the best of this machine",
             forced));
}

const KernelTable& Kernels(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx2:
      return kAvx2Kernels;
    case Isa::kAvx512:
      return kAvx512Kernels;
    case Isa::kAmx:
      return kAmxKernels;
#endif
    default:
      return kScalarKernels;
  }
}

}  // namespace deepinfer::cpu
