#include "server/auth.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

namespace deepinfer {

namespace {

std::array<unsigned char, 32> HashOf(std::string_view key) {
  std::array<unsigned char, 32> hash{};
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), hash.data());
  return hash;
}

// The key a request shows, or nullptr-like empty view.
std::string_view ShownKey(const HttpHeaders& headers) {
  const std::string* bearer = headers.Find("authorization");
  const std::string* plain = headers.Find("x-api-key");
  // Two answers to one question: whichever a proxy checked, it might be the other one.
  if (headers.Count("authorization") + headers.Count("x-api-key") != 1) return {};
  if (plain != nullptr) return *plain;
  constexpr std::string_view kScheme = "bearer ";
  const std::string_view text = *bearer;
  if (text.size() <= kScheme.size()) return {};
  if (!EqualsIgnoreCase(text.substr(0, kScheme.size()), kScheme)) return {};
  return text.substr(kScheme.size());
}

}  // namespace

Auth::Auth(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) hashes_.push_back(HashOf(key));
}

bool Auth::Allows(const HttpHeaders& headers) const {
  if (open()) return true;
  const std::string_view shown = ShownKey(headers);
  if (shown.empty()) return false;
  const Hash hash = HashOf(shown);
  // Every key is looked at, whichever matches.
  int matches = 0;
  for (const Hash& known : hashes_) {
    matches += CRYPTO_memcmp(hash.data(), known.data(), hash.size()) == 0 ? 1 : 0;
  }
  return matches > 0;
}

}  // namespace deepinfer
