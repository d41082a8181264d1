// Any Content-Type and body: parts lie within the body, in order, and limits hold.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "net/multipart.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t line = std::min(all.find('\n'), all.size());
  const std::string_view body = all.substr(std::min(line + 1, all.size()));
  const auto parts = deepinfer::ParseMultipart(all.substr(0, line), body);
  if (!parts.ok()) return 0;
  DI_CHECK(parts->size() <= deepinfer::kMultipartPartsMax);
  const char* end = body.data();
  for (const deepinfer::MultipartPart& part : *parts) {
    DI_CHECK(!part.name.empty());
    DI_CHECK(part.body.data() >= end);
    end = part.body.data() + part.body.size();
    DI_CHECK(end <= body.data() + body.size());
  }
  return 0;
}
