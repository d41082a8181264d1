// Lines of batch files, and lines that claim to be answers of ours: a line fails alone, an answer
// is one line of JSON that gives its index back.
#include <cstddef>
#include <cstdint>

#include "api/batch.h"
#include "base/check.h"
#include "base/json.h"

namespace deepinfer {
namespace {

void CheckAnswer(const std::string& line, int64_t index) {
  DI_CHECK(line.find('\n') == std::string::npos, "{}", line);
  const Result<Json> json = Json::Parse(line);
  DI_CHECK(json.ok(), "{}: {}", json.status().message(), line);
  DI_CHECK(IndexOfAnswer(line) == index, "{}", line);
}

}  // namespace
}  // namespace deepinfer

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  (void)deepinfer::IndexOfAnswer(text);
  const auto index = static_cast<int64_t>(size);
  const deepinfer::BatchItem item =
      deepinfer::ParseBatchItem({.index = index, .text = text}, "/v1/completions");
  if (!item.status.ok()) {
    deepinfer::CheckAnswer(deepinfer::ErrorLine("j", index, item.custom_id, item.status), index);
    return 0;
  }
  DI_CHECK(!item.custom_id.empty() && item.body.is_object());
  deepinfer::CheckAnswer(
      deepinfer::AnswerLine("j", index, item.custom_id, {"r", 200, item.body.Dump()}), index);
  return 0;
}
