// API keys: who may call a route. Holds only SHA-256 hashes of the keys and compares in constant
// time, so neither a memory dump nor a clock gives a key away. Immutable; any thread.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "net/http_types.h"

namespace deepinfer {

class Auth {
 public:
  // No keys: everybody may call everything.
  explicit Auth(const std::vector<std::string>& keys);

  bool open() const { return hashes_.empty(); }
  // "Authorization: Bearer KEY" or "x-api-key: KEY", exactly one of them.
  bool Allows(const HttpHeaders& headers) const;

 private:
  using Hash = std::array<unsigned char, 32>;
  std::vector<Hash> hashes_;
};

}  // namespace deepinfer
