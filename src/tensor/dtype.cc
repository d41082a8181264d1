#include "tensor/dtype.h"

#include <array>
#include <limits>
#include <string>

#include "base/check.h"

namespace deepinfer {
namespace {

// Indexed by DType.
constexpr std::array<DTypeInfo, 20> kInfo = {{
    {"F32", 1, 4},
    {"F16", 1, 2},
    {"BF16", 1, 2},
    {"I8", 1, 1},
    {"U8", 1, 1},
    {"I32", 1, 4},
    {"I64", 1, 8},
    {"Q8_0", 32, 34},
    {"Q4_0", 32, 18},
    {"Q4_1", 32, 20},
    {"Q5_0", 32, 22},
    {"Q5_1", 32, 24},
    {"Q4_K", 256, 144},
    {"Q5_K", 256, 176},
    {"Q6_K", 256, 210},
    {"MXFP4", 32, 17},
    {"F8_E4M3", 1, 1},
    {"F8_E8M0", 1, 1},
    {"F8_E4M3 with scales", 1, 1},
    {"FP4 pairs with scales", 2, 1},
}};

}  // namespace

const DTypeInfo& Info(DType dtype) {
  const auto index = static_cast<size_t>(dtype);
  DI_CHECK(index < kInfo.size(), "DType {}", index);
  return kInfo[index];
}

Result<DType> ParseDType(std::string_view name) {
  for (size_t i = 0; i < kInfo.size(); ++i) {
    if (kInfo[i].name == name) return static_cast<DType>(i);
  }
  std::string known;
  for (const DTypeInfo& info : kInfo) {
    if (!known.empty()) known += ", ";
    known += info.name;
  }
  return Invalid(Format("unknown tensor type \"{}\"; known types: {}", name, known));
}

Result<size_t> ByteSize(DType dtype, int64_t count) {
  const DTypeInfo& info = Info(dtype);
  if (count < 0) return Invalid(Format("negative element count {}", count));
  if (count % info.block_elements != 0) {
    return Invalid(Format("{} elements are not a multiple of the {} elements of a {} block", count,
                          info.block_elements, info.name));
  }
  const auto blocks = static_cast<uint64_t>(count / info.block_elements);
  constexpr uint64_t kBytesMax = std::numeric_limits<int64_t>::max();
  if (blocks > kBytesMax / static_cast<uint64_t>(info.block_bytes)) {
    return Invalid(Format("{} elements of {} overflow the byte count", count, info.name));
  }
  return static_cast<size_t>(blocks * static_cast<uint64_t>(info.block_bytes));
}

}  // namespace deepinfer
