#include "text/byte_level.h"

#include <array>

#include "base/format.h"
#include "text/unicode.h"

namespace deepinfer {
namespace {

constexpr bool StandsForItself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
  std::array<char32_t, 256> chars{};
  std::array<int16_t, 0x144> bytes{};
};

constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet;
  for (int16_t& byte : alphabet.bytes) byte = -1;
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t cp = StandsForItself(byte) ? static_cast<char32_t>(byte) : next++;
    alphabet.chars[static_cast<size_t>(byte)] = cp;
    alphabet.bytes[cp] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

char32_t ByteLevelChar(uint8_t byte) { return kAlphabet.chars[byte]; }

int ByteOfLevelChar(char32_t cp) { return cp < kAlphabet.bytes.size() ? kAlphabet.bytes[cp] : -1; }

void AppendByteLevel(std::string_view bytes, std::string* out) {
  for (const char c : bytes) AppendCodePoint(ByteLevelChar(static_cast<uint8_t>(c)), out);
}

bool AppendBytesOfLevel(std::string_view piece, std::string* out) {
  const size_t before = out->size();
  for (size_t pos = 0; pos < piece.size();) {
    int byte = -1;
    const auto lead = static_cast<uint8_t>(piece[pos]);
    if (lead < 0x80) {
      byte = ByteOfLevelChar(lead);
      pos += 1;
    } else if (lead < 0xC6 && pos + 1 < piece.size()) {  // the alphabet ends at U+0143
      byte =
          ByteOfLevelChar(((lead & 0x1FU) << 6) | (static_cast<uint8_t>(piece[pos + 1]) & 0x3FU));
      pos += 2;
    }
    if (byte < 0) {
      out->resize(before);
      return false;
    }
    out->push_back(static_cast<char>(byte));
  }
  return true;
}

int FallbackByte(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return -1;
  const int high = HexDigit(piece[3]);
  const int low = HexDigit(piece[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::string FallbackPiece(uint8_t byte) { return Format("<0x{:02X}>", byte); }

}  // namespace deepinfer
