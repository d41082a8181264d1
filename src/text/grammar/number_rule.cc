#include "text/grammar/number_rule.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace deepinfer {

namespace {

constexpr int kFractionDigits = 9;  // behind the point, where only limits are given
constexpr int kScaleMax = 18;
constexpr int kTries = 256;  // candidates looked at for one that no exclusion meets

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

constexpr int kPowersMax = 38;

constexpr std::array<__int128, kPowersMax + 1> MakePowers() {
  std::array<__int128, kPowersMax + 1> powers{};
  powers[0] = 1;
  for (int i = 1; i <= kPowersMax; ++i) {
    powers[static_cast<size_t>(i)] = powers[static_cast<size_t>(i - 1)] * 10;
  }
  return powers;
}

constexpr std::array<__int128, kPowersMax + 1> kPowers = MakePowers();

__int128 PowerOfTen(int n) { return kPowers[static_cast<size_t>(n)]; }

__int128 Gcd(__int128 a, __int128 b) {
  while (b != 0) {
    const __int128 rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

// The smallest multiple of `step` that is at least `low`.
__int128 FirstMultiple(__int128 low, __int128 step) {
  __int128 quotient = low / step;
  if (quotient * step < low) ++quotient;
  return quotient * step;
}

}  // namespace

void NumberConstraints::RaiseMin(const Decimal& value, bool exclusive) {
  const int order = min ? value.Compare(*min) : 1;
  if (order > 0) {
    min = value;
    min_exclusive = exclusive;
  } else if (order == 0) {
    min_exclusive = min_exclusive || exclusive;
  }
}

void NumberConstraints::LowerMax(const Decimal& value, bool exclusive) {
  const int order = max ? value.Compare(*max) : -1;
  if (order < 0) {
    max = value;
    max_exclusive = exclusive;
  } else if (order == 0) {
    max_exclusive = max_exclusive || exclusive;
  }
}

bool NumberConstraints::Admits(const Decimal& value) const {
  if (integer && !value.IsInteger()) return false;
  if (not_integer && value.IsInteger()) return false;
  if (min && value.Compare(*min) < (min_exclusive ? 1 : 0)) return false;
  if (max && value.Compare(*max) > (max_exclusive ? -1 : 0)) return false;
  for (const Decimal& step : multiples) {
    if (!value.IsMultipleOf(step)) return false;
  }
  for (const Decimal& step : not_multiples) {
    if (value.IsMultipleOf(step)) return false;
  }
  if (std::find(excluded.begin(), excluded.end(), value) != excluded.end()) return false;
  if (!allowed) return true;
  return std::any_of(allowed->begin(), allowed->end(),
                     [&](const std::string& text) { return Decimal::Parse(text) == value; });
}

bool NumberConstraints::free() const {
  return !not_integer && !min && !max && multiples.empty() && not_multiples.empty() && !allowed &&
         excluded.empty();
}

Result<NumberRule> NumberRule::Create(const NumberConstraints& constraints, Spelling spelling) {
  NumberRule rule;
  rule.constraints_ = constraints;
  if (constraints.allowed) {
    for (const std::string& text : *constraints.allowed) {
      const std::optional<Decimal> value = Decimal::Parse(text);
      if (value && constraints.Admits(*value)) rule.texts_.push_back(text);
    }
    rule.kind_ = rule.texts_.empty() ? Kind::kNothing : Kind::kListed;
    if (rule.kind_ == Kind::kListed && spelling == Spelling::kAny) rule.kind_ = Kind::kJudged;
    return rule;
  }
  if (constraints.integer && constraints.not_integer) {
    rule.kind_ = Kind::kNothing;
  } else if (constraints.free() && !constraints.integer) {
    rule.kind_ = Kind::kFree;
  } else if (constraints.free() && spelling == Spelling::kPlain) {
    rule.kind_ = Kind::kInteger;
  } else {
    Status status;
    rule.Scale(constraints, &status);
    const bool scaled = status.ok();
    rule.kind_ = Kind::kScaled;
    if (scaled && !rule.SomeIn(rule.low_, rule.high_)) {
      // Nothing on the grid of plain digits; between two limits there may be finer numbers.
      const bool judged_anyway = spelling == Spelling::kAny && !constraints.integer &&
                                 constraints.multiples.empty() && !rule.Exhausted();
      rule.kind_ = judged_anyway ? Kind::kJudged : Kind::kNothing;
    } else if (spelling == Spelling::kAny) {
      rule.kind_ = Kind::kJudged;
    } else if (!scaled) {
      return status;
    }
  }
  return rule;
}

// No number lies between the limits at all.
bool NumberRule::Exhausted() const {
  if (!constraints_.min || !constraints_.max) return false;
  const int order = constraints_.min->Compare(*constraints_.max);
  return order > 0 || (order == 0 && (constraints_.min_exclusive || constraints_.max_exclusive));
}

void NumberRule::Scale(const NumberConstraints& constraints, Status* status) {
  int64_t scale = constraints.integer ? 0 : kFractionDigits;
  if (!constraints.integer) {
    for (const auto* limit : {&constraints.min, &constraints.max}) {
      if (*limit) scale = std::max(scale, (*limit)->scale() + 1);
    }
    if (!constraints.multiples.empty()) scale = 0;
    for (const Decimal& value : constraints.multiples) scale = std::max(scale, value.scale());
  }
  if (scale > kScaleMax) {
    *status = Invalid("a number needs more than 18 digits behind the point");
    return;
  }
  scale_ = static_cast<int>(scale);
  const __int128 edge = PowerOfTen(constraints.integer ? 30 : 18 + scale_);
  low_ = -edge;
  high_ = edge;
  bool exact = false;
  if (constraints.min) {
    const std::optional<__int128> low = constraints.min->Scaled(scale_, &exact);
    const bool next = low && (!exact || constraints.min_exclusive);
    if (!low && !constraints.min->negative()) *status = Invalid("a limit is beyond 10^36");
    low_ = std::max(low_, low ? *low + next : low_);
  }
  if (constraints.max) {
    const std::optional<__int128> high = constraints.max->Scaled(scale_, &exact);
    const bool before = high && exact && constraints.max_exclusive;
    if (!high && constraints.max->negative()) *status = Invalid("a limit is beyond 10^36");
    high_ = std::min(high_, high ? *high - before : high_);
  }
  const auto scaled = [&](const Decimal& value) {
    const std::optional<__int128> units = value.Scaled(scale_, &exact);
    return units && exact ? *units : __int128{0};
  };
  for (const Decimal& value : constraints.multiples) {
    const __int128 units = scaled(value);
    const __int128 common = units == 0 ? 0 : Gcd(step_, units);
    if (units == 0 || units / common > PowerOfTen(34) / step_) {
      *status = Invalid("multipleOf has too many digits");
      return;
    }
    step_ = step_ / common * units;
  }
  for (const Decimal& value : constraints.not_multiples) {
    if (scaled(value) != 0) not_steps_.push_back(scaled(value));
  }
  if (constraints.not_integer) not_steps_.push_back(PowerOfTen(scale_));
  for (const Decimal& value : constraints.excluded) {
    const __int128 units = scaled(value);
    if (units != 0 || value.is_zero()) excluded_.push_back(units);
  }
}

bool NumberRule::SomeIn(__int128 low, __int128 high) const {
  low = std::max(low, low_);
  high = std::min(high, high_);
  if (low > high) return false;
  if (step_ == 1 && excluded_.empty() && not_steps_.empty()) return true;
  __int128 value = FirstMultiple(low, step_);
  for (int i = 0; i < kTries && value <= high; ++i, value += step_) {
    const bool excluded = std::find(excluded_.begin(), excluded_.end(), value) != excluded_.end() ||
                          std::any_of(not_steps_.begin(), not_steps_.end(),
                                      [&](__int128 step) { return value % step == 0; });
    if (!excluded) return true;
  }
  return false;
}

bool NumberRule::SomeMagnitudeIn(bool negative, __int128 low, __int128 high) const {
  return negative ? SomeIn(-high, -low) : SomeIn(low, high);
}

bool NumberRule::Viable(const NumberState& state) const {
  const auto digits = static_cast<__int128>(state.digits);
  switch (state.phase) {
    case NumberState::kMinus:
      return low_ <= 0 && SomeIn(low_, std::min<__int128>(high_, 0));
    case NumberState::kZero:
    case NumberState::kPoint:
      return SomeMagnitudeIn(state.negative, digits * PowerOfTen(scale_),
                             (digits + 1) * PowerOfTen(scale_) - 1);
    case NumberState::kInteger: {
      __int128 unit = PowerOfTen(scale_);
      const __int128 edge = std::max(high_ < 0 ? -high_ : high_, low_ < 0 ? -low_ : low_);
      while (digits * unit <= edge) {
        if (SomeMagnitudeIn(state.negative, digits * unit, (digits + 1) * unit - 1)) return true;
        unit *= 10;
      }
      return false;
    }
    case NumberState::kFraction: {
      const __int128 unit = PowerOfTen(scale_ - state.fraction_digits);
      return SomeMagnitudeIn(state.negative, digits * unit, (digits + 1) * unit - 1);
    }
    default:
      return false;
  }
}

bool NumberRule::StepPhase(char c, NumberState* state) const {
  using S = NumberState;
  switch (state->phase) {
    case S::kStart:
    case S::kMinus:
      if (c == '-' && state->phase == S::kStart) {
        state->phase = S::kMinus;
        state->negative = true;
        return true;
      }
      if (!IsDigit(c)) return false;
      state->phase = c == '0' ? S::kZero : S::kInteger;
      return true;
    case S::kInteger:
      if (IsDigit(c)) return true;
      [[fallthrough]];
    case S::kZero:
      if (c == '.') {
        state->phase = S::kPoint;
      } else if (c == 'e' || c == 'E') {
        state->phase = S::kExponent;
      } else {
        return false;
      }
      return true;
    case S::kPoint:
    case S::kFraction:
      if (IsDigit(c)) {
        state->phase = S::kFraction;
        return true;
      }
      if (state->phase == S::kPoint || (c != 'e' && c != 'E')) return false;
      state->phase = S::kExponent;
      return true;
    case S::kExponent:
      if (c == '+' || c == '-') {
        state->phase = S::kExponentSign;
        return true;
      }
      [[fallthrough]];
    default:
      state->phase = S::kExponentDigits;
      return IsDigit(c);
  }
}

bool NumberRule::Step(char c, NumberState* state) const {
  if (!StepPhase(c, state)) return false;
  if (kind_ == Kind::kInteger) return state->phase <= NumberState::kInteger;
  if (kind_ != Kind::kScaled) return true;
  if (state->phase > NumberState::kFraction) return false;
  if (IsDigit(c)) {
    state->digits = state->digits * 10 + static_cast<unsigned>(c - '0');
    if (state->phase == NumberState::kFraction) ++state->fraction_digits;
    if (state->fraction_digits > scale_) return false;
    if (state->digits > static_cast<unsigned __int128>(PowerOfTen(36))) return false;
  }
  if (state->phase == NumberState::kPoint && scale_ == 0) return false;
  return Viable(*state);
}

bool NumberRule::MayEnd(const NumberState& state) const {
  const bool complete = state.phase == NumberState::kZero || state.phase == NumberState::kInteger ||
                        state.phase == NumberState::kFraction ||
                        state.phase == NumberState::kExponentDigits;
  if (!complete || kind_ != Kind::kScaled) return complete;
  const __int128 value =
      static_cast<__int128>(state.digits) * PowerOfTen(scale_ - state.fraction_digits);
  return SomeMagnitudeIn(state.negative, value, value);
}

bool NumberRule::AdmitsText(std::string_view text) const {
  const std::optional<Decimal> value = Decimal::Parse(text);
  return value && constraints_.Admits(*value);
}

}  // namespace deepinfer
