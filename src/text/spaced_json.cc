// JSON with ", " and ": ", as prompts were trained on it.
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string>

#include "text/prompt_profile.h"

namespace deepinfer {
namespace {

// Powers of ten of the first digit up to which a number is written without an exponent.
constexpr int kPlainMin[] = {-4, -5};  // by Numbers
constexpr int kPlainMax = 15;

bool FitsInteger(const std::string& text) {
  if (text.find_first_of(".eE") != std::string::npos || text == "-0") return false;
  const char* end = text.data() + text.size();
  int64_t negative = 0;
  uint64_t positive = 0;
  const std::from_chars_result read = text.front() == '-'
                                          ? std::from_chars(text.data(), end, negative)
                                          : std::from_chars(text.data(), end, positive);
  return read.ec == std::errc() && read.ptr == end;
}

// The shortest digits that read back as `value`, and the power of ten of the first.
std::string ShortestDigits(double value, int* exponent) {
  char buffer[32];
  const std::to_chars_result written =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const std::string_view text(buffer, static_cast<size_t>(written.ptr - buffer));
  const size_t e = text.find('e');
  *exponent = std::atoi(std::string(text.substr(e + 1)).c_str());
  std::string digits;
  for (const char c : text.substr(0, e)) {
    if (c != '.') digits.push_back(c);
  }
  return digits;
}

void AppendFloat(double value, PromptProfile::Numbers numbers, std::string* out) {
  if (std::signbit(value)) out->push_back('-');
  int exponent = 0;
  std::string digits = ShortestDigits(std::fabs(value), &exponent);
  if (exponent < kPlainMin[static_cast<int>(numbers)] || exponent > kPlainMax) {
    out->push_back(digits[0]);
    if (digits.size() > 1) *out += "." + digits.substr(1);
    const std::string power = std::to_string(std::abs(exponent));
    *out += exponent < 0 ? "e-" : "e+";
    if (numbers == PromptProfile::Numbers::kPython && power.size() < 2) out->push_back('0');
    *out += power;
    return;
  }
  if (exponent < 0) {
    *out += "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
    return;
  }
  const size_t whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() < whole + 1) digits.resize(whole + 1, '0');
  *out += digits.substr(0, whole) + "." + digits.substr(whole);
}

void AppendNumber(const Json& value, PromptProfile::Numbers numbers, std::string* out) {
  const std::string& text = value.string();
  const Result<double> number = value.AsDouble();
  if (FitsInteger(text) || !number.ok()) {
    *out += text;  // beyond the range of doubles there is nothing better than what was written
  } else {
    AppendFloat(*number, numbers, out);
  }
}

}  // namespace

void AppendSpacedJson(const Json& value, PromptProfile::Numbers numbers, std::string* out) {
  switch (value.kind()) {
    case Json::Kind::kNull:
    case Json::Kind::kBool:
      value.DumpTo(out);
      return;
    case Json::Kind::kNumber:
      AppendNumber(value, numbers, out);
      return;
    case Json::Kind::kString:
      AppendJsonString(out, value.string());
      return;
    case Json::Kind::kArray: {
      const char* separator = "[";
      for (const Json& item : value.items()) {
        *out += separator;
        separator = ", ";
        AppendSpacedJson(item, numbers, out);
      }
      *out += value.items().empty() ? "[]" : "]";
      return;
    }
    case Json::Kind::kObject: {
      const char* separator = "{";
      for (const auto& [key, member] : value.members()) {
        *out += separator;
        separator = ", ";
        AppendJsonString(out, key);
        *out += ": ";
        AppendSpacedJson(member, numbers, out);
      }
      *out += value.members().empty() ? "{}" : "}";
      return;
    }
  }
}

}  // namespace deepinfer
