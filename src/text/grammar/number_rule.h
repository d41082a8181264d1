// What a schema says about a number, and its form for generation: plain digits judged while they
// are written, so that a prefix that is let through can always be completed. A rule is built by
// one thread, then only read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/status.h"
#include "text/grammar/decimal.h"

namespace deepinfer {

// The constraints of all schemas that apply.
struct NumberConstraints {
  bool integer = false;
  bool not_integer = false;
  std::optional<Decimal> min, max;
  bool min_exclusive = false;
  bool max_exclusive = false;
  std::vector<Decimal> multiples;                   // of each
  std::vector<Decimal> not_multiples;               // of none
  std::optional<std::vector<std::string>> allowed;  // JSON numbers
  std::vector<Decimal> excluded;

  void RaiseMin(const Decimal& value, bool exclusive);
  void LowerMax(const Decimal& value, bool exclusive);
  bool Admits(const Decimal& value) const;
  bool free() const;  // any number; `integer` aside
};

// Where a number stands. Phases as JSON's grammar has them.
struct NumberState {
  enum Phase : uint8_t {
    kStart,
    kMinus,
    kZero,
    kInteger,
    kPoint,
    kFraction,
    kExponent,
    kExponentSign,
    kExponentDigits
  };
  uint8_t phase = kStart;
  bool negative = false;
  uint16_t fraction_digits = 0;
  unsigned __int128 digits = 0;  // of scaled rules only
};

class NumberRule {
 public:
  enum class Kind : uint8_t {
    kFree,     // any JSON number
    kJudged,   // any JSON number, judged by Admits where it ends
    kInteger,  // an integer of any size
    kScaled,   // plain digits within limits
    kListed,   // one of `texts`
    kNothing,  // no number at all
  };
  // `plain`: for generation; else every spelling is taken and judged at its end.
  enum class Spelling { kPlain, kAny };
  // kInvalid where plain digits cannot express the constraints within 36 digits.
  static Result<NumberRule> Create(const NumberConstraints& constraints, Spelling spelling);

  Kind kind() const { return kind_; }
  const std::vector<std::string>& texts() const { return texts_; }
  bool AdmitsText(std::string_view text) const;  // of kJudged

  // One byte further: false when `c` cannot follow or would lead into a dead end. The state of
  // kJudged and kListed moves through phases alone.
  bool Step(char c, NumberState* state) const;
  // The number may end here. For kJudged this is the syntax alone.
  bool MayEnd(const NumberState& state) const;

 private:
  bool StepPhase(char c, NumberState* state) const;
  bool Viable(const NumberState& state) const;
  // Some admitted value lies in [low, high], in units of 10^-scale_.
  bool SomeIn(__int128 low, __int128 high) const;
  bool SomeMagnitudeIn(bool negative, __int128 low, __int128 high) const;
  void Scale(const NumberConstraints& constraints, Status* status);
  bool Exhausted() const;

  Kind kind_ = Kind::kFree;
  NumberConstraints constraints_;
  std::vector<std::string> texts_;
  int scale_ = 0;
  __int128 low_ = 0;
  __int128 high_ = 0;
  __int128 step_ = 1;
  std::vector<__int128> not_steps_;
  std::vector<__int128> excluded_;
};

}  // namespace deepinfer
