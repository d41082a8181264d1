#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "base/json.h"

// What parses is written and read back as the same value, and the same text again.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using deepinfer::Json;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const deepinfer::Result<Json> json = Json::Parse(text);
  if (!json.ok()) return 0;
  const std::string written = json->Dump();
  const deepinfer::Result<Json> again = Json::Parse(json->Dump(1));
  DI_CHECK(again.ok(), "{}", again.status().message());
  DI_CHECK(*again == *json && again->Dump() == written);
  for (const Json::Member& member : json->members()) {
    DI_CHECK(json->Find(member.first) == &member.second);
    (void)json->GetInt(member.first, 0).ok();
    (void)json->GetDouble(member.first, 0).ok();
  }
  return 0;
}
