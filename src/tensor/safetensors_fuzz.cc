// libFuzzer target: any bytes as a safetensors file. Every element of every view is read.
#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/dequantize.h"
#include "tensor/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file =
      deepinfer::SafetensorsFile::Parse(std::as_bytes(std::span(data, size)), "fuzz.safetensors");
  if (!file.ok()) return 0;
  for (const deepinfer::TensorView& view : (*file)->tensors()) {
    (void)deepinfer::DequantizeTensor(view).ok();
  }
  return 0;
}
