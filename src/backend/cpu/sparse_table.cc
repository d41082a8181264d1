#include "backend/cpu/cpu_context.h"

namespace deepinfer::cpu {

const SparseKernels& CpuContext::sparse() const {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx2:
      return kAvx2Sparse;
    case Isa::kAvx512:
    case Isa::kAmx:
      return kAvx512Sparse;
#endif
    default:
      return kScalarSparse;
  }
}

}  // namespace deepinfer::cpu
