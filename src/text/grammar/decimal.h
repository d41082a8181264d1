// Exact decimal numbers as JSON writes them: sign, digits, power of ten. Values, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace deepinfer {

class Decimal {
 public:
  Decimal() = default;  // 0
  // nullopt unless `text` is one JSON number.
  static std::optional<Decimal> Parse(std::string_view text);

  bool is_zero() const { return digits_.empty(); }
  bool negative() const { return negative_; }
  bool IsInteger() const { return exponent_ >= 0; }
  // This is an integer multiple of `step`, which is positive with at most 18 digits.
  bool IsMultipleOf(const Decimal& step) const;
  // Digits behind the point in plain notation.
  int64_t scale() const { return exponent_ < 0 ? -exponent_ : 0; }
  size_t num_digits() const { return digits_.size(); }
  // value * 10^scale rounded towards minus infinity, or nullopt beyond +-10^36.
  std::optional<__int128> Scaled(int64_t scale, bool* exact) const;

  int Compare(const Decimal& other) const;  // <0, 0, >0
  bool operator==(const Decimal& other) const { return Compare(other) == 0; }

 private:
  int CompareMagnitude(const Decimal& other) const;

  bool negative_ = false;
  std::string digits_;    // no zeros at either end; empty for 0
  int64_t exponent_ = 0;  // of the last digit
};

}  // namespace deepinfer
