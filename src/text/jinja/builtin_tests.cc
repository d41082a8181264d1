// The tests of `value is name(args)`.
#include <cmath>

#include "base/format.h"
#include "text/jinja/builtins.h"
#include "text/jinja/code_points.h"
#include "text/jinja/operators.h"
#include "text/jinja/value_text.h"

namespace deepinfer::jinja {
namespace {

bool IsView(const Value& value) {
  return value.is_sequence() && value.sequence().type > SequenceType::kRange;
}

bool IsDefined(const Value& v) { return !v.is_undefined(); }
bool IsUndefined(const Value& v) { return v.is_undefined(); }
bool IsNone(const Value& v) { return v.is_none(); }
bool IsBoolean(const Value& v) { return v.is_bool(); }
bool IsTrue(const Value& v) { return v.is_bool() && v.boolean(); }
bool IsFalse(const Value& v) { return v.is_bool() && !v.boolean(); }
bool IsInteger(const Value& v) { return v.is_int() || v.kind() == Kind::kBigInt; }
bool IsFloat(const Value& v) { return v.is_float(); }
bool IsNumber(const Value& v) { return v.is_number() || v.kind() == Kind::kBigInt; }
bool IsString(const Value& v) { return v.is_string(); }
bool IsMapping(const Value& v) { return v.is_dict(); }
bool IsSequence(const Value& v) {
  return v.is_string() || v.is_dict() || v.is_undefined() || (v.is_sequence() && !IsView(v));
}
bool IsIterable(const Value& v) {
  return v.is_string() || v.is_dict() || v.is_undefined() || v.is_sequence() ||
         v.kind() == Kind::kLoop;
}
bool IsCallable(const Value& v) {
  return v.kind() == Kind::kCallable || v.kind() == Kind::kLoop || v.is_undefined();
}
bool IsEscaped(const Value&) { return false; }

template <bool (*kPredicate)(const Value&)>
bool Predicate(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  *out = Value::Bool(kPredicate(self));
  return Bind(runtime, "test", args, {}, nullptr);
}

template <CompareOp kOp>
bool Comparison(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {{"other", Parameter::kRequired}};
  Value other;
  bool holds;
  if (!Bind(runtime, "test", args, kParameters, &other) ||
      !Compare(runtime, kOp, self, other, &holds)) {
    return false;
  }
  *out = Value::Bool(holds);
  return true;
}

bool Remainder(Runtime& runtime, const Value& self, const Value& divisor, Value* out) {
  return Apply(runtime, BinaryOp::kModulo, self, divisor, out);
}

bool TestOdd(Runtime& runtime, const Value& self, CallArgs&, Value* out) {
  Value rest;
  if (!Remainder(runtime, self, Value::Int(2), &rest)) return false;
  *out = Value::Bool(Equals(rest, Value::Int(1)));
  return true;
}

bool TestEven(Runtime& runtime, const Value& self, CallArgs&, Value* out) {
  Value rest;
  if (!Remainder(runtime, self, Value::Int(2), &rest)) return false;
  *out = Value::Bool(Equals(rest, Value::Int(0)));
  return true;
}

bool TestDivisibleBy(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {{"num", Parameter::kRequired}};
  Value divisor, rest;
  if (!Bind(runtime, "divisibleby", args, kParameters, &divisor) ||
      !Remainder(runtime, self, divisor, &rest)) {
    return false;
  }
  *out = Value::Bool(Equals(rest, Value::Int(0)));
  return true;
}

bool TestSameAs(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {{"other", Parameter::kRequired}};
  Value other;
  if (!Bind(runtime, "sameas", args, kParameters, &other)) return false;
  const bool by_value = self.is_none() || self.is_bool() || self.is_int();
  *out = Value::Bool(self.kind() == other.kind() &&
                     (by_value ? Equals(self, other) : self.object() == other.object()));
  return true;
}

// str.islower / isupper: at least one cased letter, none of the other case.
template <bool kUpper>
bool TestCase(Runtime& runtime, const Value& self, CallArgs&, Value* out) {
  Value text;
  if (!ToStr(runtime, self, &text) || !runtime.ChargeBytes(text.text().size() * 8)) return false;
  bool cased = false, all = true;
  for (size_t at = 0; at < text.text().size();) {
    const char32_t c = DecodeAt(text.str(), at, &at);
    cased = cased || IsCased(c);
    all = all && !(kUpper ? IsLower(c) : IsUpper(c));
  }
  *out = Value::Bool(cased && all);
  return true;
}

bool TestFilterExists(Runtime&, const Value& self, CallArgs&, Value* out) {
  *out = Value::Bool(self.is_string() && FindFilter(self.str()) != nullptr);
  return true;
}

bool TestTestExists(Runtime&, const Value& self, CallArgs&, Value* out) {
  *out = Value::Bool(self.is_string() && FindTest(self.str()) != nullptr);
  return true;
}

constexpr BuiltinEntry kTests[] = {
    {"defined", Predicate<IsDefined>},
    {"undefined", Predicate<IsUndefined>},
    {"none", Predicate<IsNone>},
    {"boolean", Predicate<IsBoolean>},
    {"true", Predicate<IsTrue>},
    {"false", Predicate<IsFalse>},
    {"integer", Predicate<IsInteger>},
    {"float", Predicate<IsFloat>},
    {"number", Predicate<IsNumber>},
    {"string", Predicate<IsString>},
    {"mapping", Predicate<IsMapping>},
    {"sequence", Predicate<IsSequence>},
    {"iterable", Predicate<IsIterable>},
    {"callable", Predicate<IsCallable>},
    {"escaped", Predicate<IsEscaped>},
    {"odd", TestOdd},
    {"even", TestEven},
    {"divisibleby", TestDivisibleBy},
    {"sameas", TestSameAs},
    {"lower", TestCase<false>},
    {"upper", TestCase<true>},
    {"filter", TestFilterExists},
    {"test", TestTestExists},
    {"in", Comparison<CompareOp::kIn>},
    {"eq", Comparison<CompareOp::kEqual>},
    {"equalto", Comparison<CompareOp::kEqual>},
    {"==", Comparison<CompareOp::kEqual>},
    {"ne", Comparison<CompareOp::kNotEqual>},
    {"!=", Comparison<CompareOp::kNotEqual>},
    {"lt", Comparison<CompareOp::kLess>},
    {"lessthan", Comparison<CompareOp::kLess>},
    {"<", Comparison<CompareOp::kLess>},
    {"le", Comparison<CompareOp::kLessEqual>},
    {"<=", Comparison<CompareOp::kLessEqual>},
    {"gt", Comparison<CompareOp::kGreater>},
    {"greaterthan", Comparison<CompareOp::kGreater>},
    {">", Comparison<CompareOp::kGreater>},
    {"ge", Comparison<CompareOp::kGreaterEqual>},
    {">=", Comparison<CompareOp::kGreaterEqual>},
};

}  // namespace

Builtin FindTest(std::string_view name) {
  for (const BuiltinEntry& entry : kTests) {
    if (entry.name == name) return entry.function;
  }
  return nullptr;
}

}  // namespace deepinfer::jinja
