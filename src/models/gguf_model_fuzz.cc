// libFuzzer target: any bytes as a GGUF model: configuration and tokenizer out of its metadata.
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "models/model_config.h"
#include "models/tokenizer_source.h"
#include "tensor/gguf.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = deepinfer::GgufFile::Parse(std::as_bytes(std::span(data, size)), "fuzz.gguf");
  if (!file.ok()) return 0;
  const deepinfer::GgufMetadata& metadata = (*file)->metadata();
  const auto layers = deepinfer::GgufLayerCount(metadata);
  if (layers.ok()) {
    const std::vector<float> factors = {1.0F, 2.0F};
    deepinfer::GgufTensorFacts facts;
    facts.vocab = 4;
    facts.sparse_layer.assign(static_cast<size_t>(*layers), 1);
    (void)deepinfer::ConfigFromGguf(metadata, facts).ok();
    facts.rope_factors = factors;
    (void)deepinfer::ConfigFromGguf(metadata, facts).ok();
  }
  auto spec = deepinfer::TokenizerFromGguf(metadata);
  if (!spec.ok()) return 0;
  const auto tokenizer = deepinfer::Tokenizer::Create(*std::move(spec));
  if (!tokenizer.ok()) return 0;
  const auto ids = (*tokenizer)->Encode("<s>Hello, w\xC3\xB6rld 123\n\t \xFF");
  (void)(*tokenizer)->Decode(ids, false);
  return 0;
}
