#include "text/grammar/decimal.h"

#include <algorithm>

namespace deepinfer {

namespace {

constexpr int64_t kExponentMax = 1'000'000'000;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

uint64_t MulMod(uint64_t a, uint64_t b, uint64_t m) {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b % m);
}

}  // namespace

std::optional<Decimal> Decimal::Parse(std::string_view text) {
  Decimal out;
  size_t at = 0;
  if (at < text.size() && text[at] == '-') {
    out.negative_ = true;
    ++at;
  }
  const size_t first = at;
  while (at < text.size() && IsDigit(text[at])) out.digits_ += text[at++];
  if (at == first || (text[first] == '0' && at - first > 1)) return std::nullopt;
  if (at < text.size() && text[at] == '.') {
    const size_t fraction = ++at;
    while (at < text.size() && IsDigit(text[at])) out.digits_ += text[at++];
    if (at == fraction) return std::nullopt;
    out.exponent_ = -static_cast<int64_t>(at - fraction);
  }
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    ++at;
    const bool minus = at < text.size() && text[at] == '-';
    if (at < text.size() && (text[at] == '-' || text[at] == '+')) ++at;
    const size_t begin = at;
    int64_t power = 0;
    for (; at < text.size() && IsDigit(text[at]); ++at) {
      power = std::min(power * 10 + (text[at] - '0'), kExponentMax);
    }
    if (at == begin) return std::nullopt;
    out.exponent_ += minus ? -power : power;
  }
  if (at != text.size()) return std::nullopt;
  out.digits_.erase(0, std::min(out.digits_.find_first_not_of('0'), out.digits_.size()));
  while (!out.digits_.empty() && out.digits_.back() == '0') {
    out.digits_.pop_back();
    ++out.exponent_;
  }
  if (out.digits_.empty()) {
    out.negative_ = false;
    out.exponent_ = 0;
  }
  return out;
}

bool Decimal::IsMultipleOf(const Decimal& step) const {
  if (is_zero()) return true;
  if (exponent_ < step.exponent_) return false;  // both end in a digit other than 0
  uint64_t modulus = 0;
  for (const char c : step.digits_) modulus = modulus * 10 + static_cast<uint64_t>(c - '0');
  uint64_t rest = 0;
  for (const char c : digits_) {
    rest = (MulMod(rest, 10, modulus) + static_cast<uint64_t>(c - '0')) % modulus;
  }
  uint64_t power = 10 % modulus;
  for (auto left = static_cast<uint64_t>(exponent_ - step.exponent_); left > 0; left >>= 1) {
    if ((left & 1) != 0) rest = MulMod(rest, power, modulus);
    power = MulMod(power, power, modulus);
  }
  return rest == 0;
}

std::optional<__int128> Decimal::Scaled(int64_t scale, bool* exact) const {
  *exact = true;
  if (is_zero()) return 0;
  const int64_t shift = exponent_ + scale;
  if (static_cast<int64_t>(digits_.size()) + shift > 36) return std::nullopt;
  __int128 value = 0;
  const int64_t keep = static_cast<int64_t>(digits_.size()) + std::min<int64_t>(shift, 0);
  for (int64_t i = 0; i < keep; ++i) value = value * 10 + (digits_[static_cast<size_t>(i)] - '0');
  for (int64_t i = 0; i < shift; ++i) value *= 10;
  if (negative_) value = -value;
  if (shift < 0) {
    *exact = false;  // the last digit is not 0
    if (negative_) --value;
  }
  return value;
}

int Decimal::CompareMagnitude(const Decimal& other) const {
  if (is_zero() || other.is_zero()) return static_cast<int>(!is_zero()) - !other.is_zero();
  const int64_t top = exponent_ + static_cast<int64_t>(digits_.size());
  const int64_t other_top = other.exponent_ + static_cast<int64_t>(other.digits_.size());
  if (top != other_top) return top < other_top ? -1 : 1;
  return digits_.compare(other.digits_);  // no trailing zeros: a longer one is larger
}

int Decimal::Compare(const Decimal& other) const {
  if (negative_ != other.negative_) return negative_ ? -1 : 1;
  return negative_ ? -CompareMagnitude(other) : CompareMagnitude(other);
}

}  // namespace deepinfer
