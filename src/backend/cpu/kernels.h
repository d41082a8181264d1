// The table of products and conversions of an ISA. Plain data, any thread.
#pragma once

#include "backend/cpu/packed_layout.h"
#include "backend/cpu/packed_linear.h"

namespace deepinfer::cpu {

const KernelTable& Kernels(Isa isa);

}  // namespace deepinfer::cpu
