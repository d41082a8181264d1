// libFuzzer target: any bytes as a GGUF file. Everything a loader reads is touched.
#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/dequantize.h"
#include "tensor/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = deepinfer::GgufFile::Parse(std::as_bytes(std::span(data, size)), "fuzz.gguf");
  if (!file.ok()) return 0;
  for (const auto& entry : (*file)->metadata().entries()) {
    (void)(*file)->metadata().GetInt(entry.key, 0).ok();
    (void)(*file)->metadata().GetDouble(entry.key, 0.0).ok();
    (void)(*file)->metadata().GetBool(entry.key, false).ok();
    (void)(*file)->metadata().GetString(entry.key, "").ok();
    (void)(*file)->metadata().GetStrings(entry.key).ok();
    (void)(*file)->metadata().GetInts(entry.key).ok();
    (void)(*file)->metadata().GetFloats(entry.key).ok();
  }
  for (const deepinfer::TensorView& view : (*file)->tensors())
    (void)deepinfer::DequantizeTensor(view).ok();
  return 0;
}
