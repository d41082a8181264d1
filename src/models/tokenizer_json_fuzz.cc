// libFuzzer target: any text as tokenizer.json; what parses must build or be refused, and encode.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "models/tokenizer_source.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto spec = deepinfer::ParseTokenizerJson({reinterpret_cast<const char*>(data), size});
  if (!spec.ok()) return 0;
  const auto tokenizer = deepinfer::Tokenizer::Create(*std::move(spec));
  if (!tokenizer.ok()) return 0;
  const auto ids = (*tokenizer)->Encode("<s>Hello, w\xC3\xB6rld 123\n\t \xFF");
  (void)(*tokenizer)->Decode(ids, false);
  return 0;
}
