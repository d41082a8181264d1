// The byte-level alphabet of GPT-2: each byte is written as one printable character.
// Pure functions, safe on any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace deepinfer {

// Printable Latin-1 bytes stand for themselves, the other 68 for U+0100 onwards in byte order.
char32_t ByteLevelChar(uint8_t byte);
// -1: no byte is written so.
int ByteOfLevelChar(char32_t cp);
void AppendByteLevel(std::string_view bytes, std::string* out);
// Appends the bytes that `piece` is written for; false, and nothing appended, when some character
// of it stands for no byte.
bool AppendBytesOfLevel(std::string_view piece, std::string* out);
// The byte of "<0x0A>", or -1.
int FallbackByte(std::string_view piece);
std::string FallbackPiece(uint8_t byte);

}  // namespace deepinfer
