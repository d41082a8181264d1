// UTF-8 and character classes for the tokenizer. Pure functions, safe on any thread.
// Classes follow Unicode 16 (tools/gen_unicode.py), the version of Hugging Face's regex engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace deepinfer {

// Bits of CharClassOf.
struct CharClass {
  enum : uint16_t {
    kLu = 1,
    kLl = 2,
    kLt = 4,
    kLm = 8,
    kLo = 16,
    kLetter = 31,
    kMark = 32,
    kNumber = 64,
    kPunct = 128,
    kSymbol = 256,
    kSpace = 512,      // White_Space
    kWord = 1024,      // \w: alphabetic, marks, decimal numbers, connectors, joiners
    kNfcInert = 2048,  // NFC leaves it alone and nothing composes with what stands before it
    kNewMark = 4096,   // normalised or a mark, but only after Unicode 9
    kNewPunct = 8192,  // punctuation, but only after Unicode 8
  };
};

extern const uint16_t kCharClasses[];
extern const uint16_t kAsciiClasses[];
extern const uint16_t kCharStage1[];
extern const uint8_t kCharStage2[];

// `cp` is at most U+10FFFF.
inline uint16_t CharClassOf(char32_t cp) {
  return kCharClasses[kCharStage2[kCharStage1[cp >> 7] * 128 + (cp & 127)]];
}

// Length of the character that starts with `lead`, in valid UTF-8.
inline int Utf8Length(char lead) {
  const auto c = static_cast<unsigned char>(lead);
  return c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}

// The character at `p`, which must start a complete character of valid UTF-8.
inline char32_t DecodeUtf8(const char* p, int* length) {
  const auto* u = reinterpret_cast<const unsigned char*>(p);
  if (u[0] < 0x80) {
    *length = 1;
    return u[0];
  }
  if (u[0] < 0xE0) {
    *length = 2;
    return ((u[0] & 0x1FU) << 6) | (u[1] & 0x3FU);
  }
  if (u[0] < 0xF0) {
    *length = 3;
    return ((u[0] & 0x0FU) << 12) | ((u[1] & 0x3FU) << 6) | (u[2] & 0x3FU);
  }
  *length = 4;
  return ((u[0] & 0x07U) << 18) | ((u[1] & 0x3FU) << 12) | ((u[2] & 0x3FU) << 6) | (u[3] & 0x3FU);
}

// Class of the character at `p` in valid UTF-8.
inline uint16_t CharClassAt(const char* p, int* length) {
  const auto c = static_cast<unsigned char>(*p);
  if (c < 0x80) {
    *length = 1;
    return kAsciiClasses[c];
  }
  return CharClassOf(DecodeUtf8(p, length));
}

void AppendCodePoint(char32_t cp, std::string* out);

// One step through bytes that may be anything.
struct Utf8Step {
  enum class Kind { kCharacter, kInvalid, kIncomplete };
  Kind kind = Kind::kCharacter;
  int length = 1;  // bytes of the character, or of the maximal invalid or incomplete prefix
};
// `text` is not empty. kIncomplete: all of `text` is a proper prefix of some valid character.
Utf8Step NextUtf8Step(std::string_view text);

// Bytes of `text` from its start that are valid UTF-8.
size_t ValidUtf8Prefix(std::string_view text);

// Start of the character that ends just before `pos` in valid UTF-8; pos > 0.
inline size_t PreviousUtf8Start(std::string_view text, size_t pos) {
  --pos;
  while (pos > 0 && (static_cast<unsigned char>(text[pos]) & 0xC0U) == 0x80) --pos;
  return pos;
}

inline constexpr std::string_view kReplacementUtf8 = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace deepinfer
