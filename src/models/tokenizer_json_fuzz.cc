// libFuzzer target: any text as tokenizer.json, tokenizer_config.json and config.json. A tokenizer
// that parses must build or be refused, and encode.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "models/model_config.h"
#include "models/tokenizer_source.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto json = deepinfer::Json::Parse(text);
  if (!json.ok()) return 0;
  (void)deepinfer::ConfigFromHf(*json, &*json).ok();
  (void)deepinfer::ChatTemplateOf(*json).ok();
  auto spec = deepinfer::ParseTokenizerJson(text);
  if (!spec.ok()) return 0;
  (void)deepinfer::ApplyTokenizerConfig(*json, &*spec).ok();
  const auto tokenizer = deepinfer::Tokenizer::Create(*std::move(spec));
  if (!tokenizer.ok()) return 0;
  const auto ids = (*tokenizer)->Encode("<s>Hello, w\xC3\xB6rld 123\n\t \xFF");
  (void)(*tokenizer)->Decode(ids, false);
  return 0;
}
