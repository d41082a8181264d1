// Request targets from outside: decoding must stay inside its bounds and keep its promises.
#include <cstdint>
#include <cstdlib>

#include "net/http_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (auto target = deepinfer::ParseHttpTarget(text); target.ok()) {
    const std::string& path = target->path;
    if (path.empty() || (path != "*" && path[0] != '/')) std::abort();
    if (path.find('\0') != std::string::npos) std::abort();
    if ((path + "/").find("/../") != std::string::npos) std::abort();
    (void)deepinfer::QueryValue(target->query, "limit");
  }
  (void)deepinfer::QueryValue(text, "a b");
  return 0;
}
