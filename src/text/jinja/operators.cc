#include "text/jinja/operators.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/format.h"
#include "text/jinja/builtins.h"
#include "text/jinja/code_points.h"
#include "text/jinja/text_ops.h"

namespace deepinfer::jinja {
namespace {

constexpr std::string_view kSigns[] = {"+", "-", "*", "/", "//", "%", "**"};

bool Unsupported(Runtime& runtime, BinaryOp op, const Value& a, const Value& b) {
  if (a.is_undefined()) return runtime.Fail(std::string(a.why()));
  if (b.is_undefined()) return runtime.Fail(std::string(b.why()));
  if (op == BinaryOp::kAdd && a.is_string()) {
    return runtime.Fail(Format("can only concatenate str (not \"{}\") to str", TypeName(b)));
  }
  return runtime.Fail(Format("unsupported operand types for {}: '{}' and '{}'",
                             kSigns[static_cast<int>(op)], TypeName(a), TypeName(b)));
}

bool Overflow(Runtime& runtime) { return runtime.Fail("the integer does not fit 64 bits"); }

bool IntPower(Runtime& runtime, int64_t base, int64_t exponent, Value* out) {
  if (exponent < 0) {
    if (base == 0) return runtime.Fail("0 cannot be raised to a negative power");
    *out = Value::Float(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
    return true;
  }
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) {
      return Overflow(runtime);
    }
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return Overflow(runtime);
  }
  *out = Value::Int(result);
  return true;
}

bool IntArithmetic(Runtime& runtime, BinaryOp op, int64_t a, int64_t b, Value* out) {
  int64_t result = 0;
  switch (op) {
    case BinaryOp::kAdd:
      if (__builtin_add_overflow(a, b, &result)) return Overflow(runtime);
      break;
    case BinaryOp::kSubtract:
      if (__builtin_sub_overflow(a, b, &result)) return Overflow(runtime);
      break;
    case BinaryOp::kMultiply:
      if (__builtin_mul_overflow(a, b, &result)) return Overflow(runtime);
      break;
    case BinaryOp::kPower:
      return IntPower(runtime, a, b, out);
    default:
      if (b == 0) return runtime.Fail("division by zero");
      if (op == BinaryOp::kDivide) {
        *out = Value::Float(static_cast<double>(a) / static_cast<double>(b));
        return true;
      }
      if (b == -1) {  // INT64_MIN / -1 does not fit
        if (op == BinaryOp::kModulo) break;
        if (__builtin_sub_overflow(int64_t{0}, a, &result)) return Overflow(runtime);
        break;
      }
      const int64_t remainder = a % b;
      const bool adjust = remainder != 0 && (remainder < 0) != (b < 0);
      result = op == BinaryOp::kModulo ? remainder + (adjust ? b : 0) : a / b - (adjust ? 1 : 0);
      break;
  }
  *out = Value::Int(result);
  return true;
}

bool FloatArithmetic(Runtime& runtime, BinaryOp op, double a, double b, Value* out) {
  double result = 0;
  switch (op) {
    case BinaryOp::kAdd:
      result = a + b;
      break;
    case BinaryOp::kSubtract:
      result = a - b;
      break;
    case BinaryOp::kMultiply:
      result = a * b;
      break;
    case BinaryOp::kPower:
      if (a == 0 && b < 0) return runtime.Fail("0.0 cannot be raised to a negative power");
      result = std::pow(a, b);
      if (std::isnan(result) && !std::isnan(a) && !std::isnan(b)) {
        return runtime.Fail("the power of a negative number is not real");
      }
      break;
    default: {
      if (b == 0) return runtime.Fail("float division by zero");
      if (op == BinaryOp::kDivide) {
        result = a / b;
        break;
      }
      double remainder = std::fmod(a, b);
      if (remainder != 0 && (b < 0) != (remainder < 0)) remainder += b;
      if (remainder == 0) remainder = std::copysign(0.0, b);
      if (op == BinaryOp::kModulo) {
        result = remainder;
        break;
      }
      const double quotient = (a - remainder) / b;
      result = std::floor(quotient);
      if (quotient - result > 0.5) result += 1;
      if (quotient == 0) result = std::copysign(0.0, a / b);
      break;
    }
  }
  *out = Value::Float(result);
  return true;
}

bool Repeat(Runtime& runtime, const Value& value, int64_t times, Value* out) {
  const auto count = static_cast<size_t>(std::max<int64_t>(times, 0));
  if (value.is_string()) {
    const size_t size = value.text().size();
    if (size != 0 && count > std::numeric_limits<size_t>::max() / size) {
      return runtime.CheckSize(std::numeric_limits<size_t>::max());
    }
    if (!runtime.CheckSize(size * count)) return false;
    MarkedText text;
    for (size_t i = 0; i < count && size != 0; ++i) text.Append(value.text());
    return runtime.MakeString(std::move(text), out);
  }
  const auto& items = value.sequence().items;
  constexpr size_t kItemsMax = 1'000'000;
  if (!items.empty() && count > kItemsMax / items.size()) {
    return runtime.Fail(Format("repeating a list gives more than {} items", kItemsMax));
  }
  std::vector<Value> repeated;
  repeated.reserve(items.size() * count);
  for (size_t i = 0; i < count && !items.empty(); ++i) {
    repeated.insert(repeated.end(), items.begin(), items.end());
  }
  return runtime.MakeSequence(value.sequence().type, std::move(repeated), out);
}

bool IsListOrTuple(const Value& value) {
  return value.is_sequence() && (value.sequence().type == SequenceType::kList ||
                                 value.sequence().type == SequenceType::kTuple);
}

bool Join(Runtime& runtime, const Value& a, const Value& b, Value* out) {
  if (a.is_string()) {
    if (!runtime.CheckSize(a.text().size() + b.text().size())) return false;
    const bool markup = a.is_markup() || b.is_markup();
    MarkedText text = markup && !a.is_markup() ? EscapeHtml(a.text()) : a.text();
    text.Append(markup && !b.is_markup() ? EscapeHtml(b.text()) : b.text());
    return markup ? runtime.MakeMarkup(std::move(text), out)
                  : runtime.MakeString(std::move(text), out);
  }
  std::vector<Value> items = a.sequence().items;
  items.insert(items.end(), b.sequence().items.begin(), b.sequence().items.end());
  return runtime.MakeSequence(a.sequence().type, std::move(items), out);
}

// Python's adjustment of slice bounds to a sequence of `length`.
struct SliceBounds {
  int64_t start, stop, step, count;
};

bool ReadBound(Runtime& runtime, const Value& value, int64_t* out, bool* given) {
  *given = !value.is_none();
  if (value.is_none()) return true;
  if (value.is_undefined()) return runtime.Fail(std::string(value.why()));
  if (!value.is_integral()) {
    return runtime.Fail(Format("slice indices must be integers, not {}", TypeName(value)));
  }
  *out = value.integer();
  return true;
}

bool ResolveSlice(Runtime& runtime, const Value& start, const Value& stop, const Value& step,
                  int64_t length, SliceBounds* bounds) {
  bool has_start, has_stop, has_step;
  bounds->step = 1;
  if (!ReadBound(runtime, start, &bounds->start, &has_start) ||
      !ReadBound(runtime, stop, &bounds->stop, &has_stop) ||
      !ReadBound(runtime, step, &bounds->step, &has_step)) {
    return false;
  }
  if (bounds->step == 0) return runtime.Fail("slice step cannot be zero");
  const bool forward = bounds->step > 0;
  const int64_t low = forward ? 0 : -1;
  const int64_t high = forward ? length : length - 1;
  const auto clamp = [&](int64_t index) {
    if (index < 0) index = index < -length ? low : index + length;
    return std::clamp(index, low, high);
  };
  bounds->start = has_start ? clamp(bounds->start) : (forward ? 0 : length - 1);
  bounds->stop = has_stop ? clamp(bounds->stop) : (forward ? length : -1);
  const int64_t span = forward ? bounds->stop - bounds->start : bounds->start - bounds->stop;
  const uint64_t stride =
      forward ? static_cast<uint64_t>(bounds->step) : 0 - static_cast<uint64_t>(bounds->step);
  bounds->count =
      span <= 0 ? 0 : static_cast<int64_t>((static_cast<uint64_t>(span) - 1) / stride) + 1;
  return true;
}

bool SliceString(Runtime& runtime, const Value& value, const Value& start, const Value& stop,
                 const Value& step, Value* out) {
  const MarkedText& text = value.text();
  if (!runtime.ChargeBytes(text.size())) return false;
  const auto length = static_cast<int64_t>(CountCodePoints(text.view()));
  SliceBounds bounds{};
  if (!ResolveSlice(runtime, start, stop, step, length, &bounds)) return false;
  if (bounds.count == 0) return runtime.MakeString({}, out);
  const bool ascii = static_cast<size_t>(length) == text.size();
  const auto offset = [&](int64_t index) {
    return ascii ? static_cast<size_t>(index) : ByteOffset(text.view(), static_cast<size_t>(index));
  };
  if (bounds.step == 1) {
    return runtime.MakeString(text.Slice(offset(bounds.start), offset(bounds.start + bounds.count)),
                              out);
  }
  if (!runtime.Charge(bounds.count)) return false;
  std::vector<size_t> starts;  // of every code point, and the end
  starts.reserve(static_cast<size_t>(length) + 1);
  for (size_t at = 0; at < text.size();) {
    starts.push_back(at);
    DecodeAt(text.view(), at, &at);
  }
  starts.push_back(text.size());
  MarkedText picked;
  int64_t index = bounds.start;
  for (int64_t i = 0; i < bounds.count; ++i) {
    picked.Append(text, starts[static_cast<size_t>(index)], starts[static_cast<size_t>(index) + 1]);
    if (i + 1 < bounds.count) index += bounds.step;
  }
  return runtime.MakeString(std::move(picked), out);
}

bool StringItem(Runtime& runtime, const Value& object, int64_t index, Value* out) {
  const MarkedText& text = object.text();
  if (!runtime.ChargeBytes(text.size())) return false;
  const auto length = static_cast<int64_t>(CountCodePoints(text.view()));
  if (index < 0) index += length;
  if (index < 0 || index >= length) {
    *out = Value::Undefined("'str object' has no element at that index");
    return true;
  }
  const size_t begin = ByteOffset(text.view(), static_cast<size_t>(index));
  size_t end;
  DecodeAt(text.view(), begin, &end);
  return runtime.MakeString(text.Slice(begin, end), out);
}

Value NoElement(const Value& object, const Value& index) {
  if (index.is_string()) {
    return Value::Undefined(
        Format("'{} object' has no attribute '{}'", TypeName(object), index.str()));
  }
  if (index.is_integral()) {
    return Value::Undefined(
        Format("{} object has no element {}", TypeName(object), index.integer()));
  }
  return Value::Undefined(Format("{} object has no such element", TypeName(object)));
}

bool OrderSequences(Runtime& runtime, const Value& a, const Value& b, bool* less, bool* equal) {
  const auto& x = a.sequence().items;
  const auto& y = b.sequence().items;
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    bool same;
    if (!runtime.Equal(x[i], y[i], &same)) return false;
    if (same) continue;
    *equal = false;
    return LessThan(runtime, x[i], y[i], less);
  }
  *equal = x.size() == y.size();
  *less = x.size() < y.size();
  return true;
}

// *less and *equal of two ordered values.
bool Order(Runtime& runtime, std::string_view sign, const Value& a, const Value& b, bool* less,
           bool* equal) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) {
      *less = a.integer() < b.integer();
      *equal = a.integer() == b.integer();
    } else {
      *less = a.real() < b.real();
      *equal = a.real() == b.real();
    }
    return true;
  }
  if (a.is_string() && b.is_string()) {
    if (!runtime.ChargeBytes(std::min(a.text().size(), b.text().size()))) return false;
    const int order = a.str().compare(b.str());
    *less = order < 0;
    *equal = order == 0;
    return true;
  }
  if (IsListOrTuple(a) && IsListOrTuple(b) && a.sequence().type == b.sequence().type) {
    return OrderSequences(runtime, a, b, less, equal);
  }
  for (const Value* value : {&a, &b}) {
    if (value->is_undefined()) return runtime.Fail(std::string(value->why()));
  }
  return runtime.Fail(Format("'{}' not supported between instances of '{}' and '{}'", sign,
                             TypeName(a), TypeName(b)));
}

}  // namespace

bool Apply(Runtime& runtime, BinaryOp op, const Value& a, const Value& b, Value* out) {
  if (a.is_integral() && b.is_integral()) {
    return IntArithmetic(runtime, op, a.integer(), b.integer(), out);
  }
  if (a.is_number() && b.is_number()) return FloatArithmetic(runtime, op, a.real(), b.real(), out);
  const bool same_sequences =
      IsListOrTuple(a) && IsListOrTuple(b) && a.sequence().type == b.sequence().type;
  if (op == BinaryOp::kAdd && ((a.is_string() && b.is_string()) || same_sequences)) {
    return Join(runtime, a, b, out);
  }
  if (op == BinaryOp::kMultiply) {
    if ((a.is_string() || IsListOrTuple(a)) && b.is_integral()) {
      return Repeat(runtime, a, b.integer(), out);
    }
    if ((b.is_string() || IsListOrTuple(b)) && a.is_integral()) {
      return Repeat(runtime, b, a.integer(), out);
    }
  }
  if (op == BinaryOp::kModulo && a.is_string()) return PercentFormat(runtime, a, b, out);
  return Unsupported(runtime, op, a, b);
}

bool LessThan(Runtime& runtime, const Value& a, const Value& b, bool* out) {
  bool equal;
  return runtime.Charge(1) && Order(runtime, "<", a, b, out, &equal);
}

bool Compare(Runtime& runtime, CompareOp op, const Value& a, const Value& b, bool* out) {
  bool less = false, equal = false;
  switch (op) {
    case CompareOp::kEqual:
      return runtime.Equal(a, b, out);
    case CompareOp::kNotEqual:
      if (!runtime.Equal(a, b, out)) return false;
      *out = !*out;
      return true;
    case CompareOp::kIn:
      return Contains(runtime, b, a, out);
    case CompareOp::kNotIn:
      if (!Contains(runtime, b, a, out)) return false;
      *out = !*out;
      return true;
    case CompareOp::kLess:
      if (!Order(runtime, "<", a, b, &less, &equal)) return false;
      *out = less;
      return true;
    case CompareOp::kLessEqual:
      if (!Order(runtime, "<=", a, b, &less, &equal)) return false;
      *out = less || equal;
      return true;
    case CompareOp::kGreater:  // b < a, so that NaN compares false
      if (!Order(runtime, ">", b, a, &less, &equal)) return false;
      *out = less;
      return true;
    case CompareOp::kGreaterEqual:
      if (!Order(runtime, ">=", b, a, &less, &equal)) return false;
      *out = less || equal;
      return true;
  }
  return false;
}

bool Contains(Runtime& runtime, const Value& container, const Value& item, bool* out) {
  *out = false;
  switch (container.kind()) {
    case Kind::kUndefined:
      return true;
    case Kind::kString:
      if (!item.is_string()) {
        if (item.is_undefined()) return runtime.Fail(std::string(item.why()));
        return runtime.Fail(
            Format("'in <string>' requires string as left operand, not {}", TypeName(item)));
      }
      if (!runtime.ChargeBytes(container.text().size())) return false;
      *out = FindText(container.str(), item.str()) != std::string_view::npos;
      return true;
    case Kind::kDict:
      if (!IsHashable(item)) {
        return runtime.Fail(Format("unhashable type: '{}'", TypeName(item)));
      }
      *out = container.dict().Find(item) != nullptr;
      return runtime.Charge(item.weight());
    case Kind::kSequence: {
      Value items;
      if (!Iterate(runtime, container, &items)) return false;
      for (const Value& element : items.sequence().items) {
        if (!runtime.Equal(element, item, out)) return false;
        if (*out) return true;
      }
      return true;
    }
    default:
      return runtime.Fail(Format("argument of type '{}' is not iterable", TypeName(container)));
  }
}

bool Negate(Runtime& runtime, const Value& value, Value* out) {
  if (value.is_float()) {
    *out = Value::Float(-value.real());
    return true;
  }
  if (value.is_integral()) {
    return IntArithmetic(runtime, BinaryOp::kSubtract, 0, value.integer(), out);
  }
  if (value.is_undefined()) return runtime.Fail(std::string(value.why()));
  return runtime.Fail(Format("bad operand type for unary -: '{}'", TypeName(value)));
}

bool Length(Runtime& runtime, const Value& value, int64_t* out) {
  switch (value.kind()) {
    case Kind::kUndefined:
      *out = 0;
      return true;
    case Kind::kString:
      *out = static_cast<int64_t>(CountCodePoints(value.str()));
      return runtime.ChargeBytes(value.text().size());
    case Kind::kDict:
      *out = static_cast<int64_t>(value.dict().entries.size());
      return true;
    case Kind::kLoop:
      *out = value.loop().length();
      return true;
    case Kind::kSequence:
      if (value.sequence().type != SequenceType::kIterator) {
        *out = static_cast<int64_t>(value.sequence().items.size());
        return true;
      }
      break;
    default:
      break;
  }
  return runtime.Fail(Format("object of type '{}' has no len()", TypeName(value)));
}

namespace {

bool LoopAttribute(const LoopObject& loop, std::string_view name, Value* out) {
  const int64_t index = loop.index0;
  const auto& items = loop.sequence.sequence().items;
  const auto at = static_cast<size_t>(index);
  if (name == "index0")
    *out = Value::Int(index);
  else if (name == "index")
    *out = Value::Int(index + 1);
  else if (name == "revindex0")
    *out = Value::Int(loop.length() - index - 1);
  else if (name == "revindex")
    *out = Value::Int(loop.length() - index);
  else if (name == "first")
    *out = Value::Bool(index == 0);
  else if (name == "last")
    *out = Value::Bool(index + 1 == loop.length());
  else if (name == "length")
    *out = Value::Int(loop.length());
  else if (name == "depth")
    *out = Value::Int(loop.depth0 + 1);
  else if (name == "depth0")
    *out = Value::Int(loop.depth0);
  else if (name == "previtem") {
    *out = at == 0 ? Value::Undefined("there is no previous item") : items[at - 1];
  } else if (name == "nextitem") {
    *out = at + 1 >= items.size() ? Value::Undefined("there is no next item") : items[at + 1];
  } else {
    return false;
  }
  return true;
}

}  // namespace

bool GetAttribute(Runtime& runtime, const Value& object, std::string_view name, Value* out) {
  if (object.is_undefined()) return runtime.Fail(std::string(object.why()));
  if (const Builtin method = FindMethod(object, name)) {
    return runtime.MakeFunction(std::string(name), method, object, out);
  }
  if (object.kind() == Kind::kNamespace) {
    if (const Value* found = object.ns().Find(name)) {
      *out = *found;
      return true;
    }
  } else if (object.is_dict()) {
    if (const Value* found = object.dict().Find(name)) {
      *out = *found;
      return true;
    }
  } else if (object.kind() == Kind::kLoop) {
    if (LoopAttribute(object.loop(), name, out)) return true;
  } else if (object.kind() == Kind::kCallable) {
    if (object.callable().Attribute(name, out)) return true;
  } else if (object.is_sequence() && object.sequence().type == SequenceType::kGroup) {
    if (name == "grouper" || name == "list") {
      *out = object.sequence().items[name == "list" ? 1 : 0];
      return true;
    }
  }
  *out = Value::Undefined(Format("'{} object' has no attribute '{}'",
                                 object.is_none() ? "None" : TypeName(object), name));
  return true;
}

bool GetItem(Runtime& runtime, const Value& object, const Value& index, Value* out) {
  if (object.is_undefined()) return runtime.Fail(std::string(object.why()));
  if (object.is_dict() && IsHashable(index)) {
    if (const Value* found = object.dict().Find(index)) {
      *out = *found;
      return true;
    }
  } else if (object.is_string() && index.is_integral()) {
    return StringItem(runtime, object, index.integer(), out);
  } else if (object.is_sequence() && index.is_integral()) {
    const SequenceObject& sequence = object.sequence();
    const bool indexable = sequence.type <= SequenceType::kRange;
    const auto length = static_cast<int64_t>(sequence.items.size());
    const int64_t at = index.integer() < 0 ? index.integer() + length : index.integer();
    if (indexable && at >= 0 && at < length) {
      *out = sequence.items[static_cast<size_t>(at)];
      return true;
    }
  }
  if (index.is_string()) {
    if (object.is_dict()) {  // the key is missing: only a method is left
      if (const Builtin method = FindMethod(object, index.str())) {
        return runtime.MakeFunction(std::string(index.str()), method, object, out);
      }
    } else {
      return GetAttribute(runtime, object, index.str(), out);
    }
  }
  *out = NoElement(object, index);
  return true;
}

bool GetSlice(Runtime& runtime, const Value& object, const Value& start, const Value& stop,
              const Value& step, Value* out) {
  if (object.is_string()) return SliceString(runtime, object, start, stop, step, out);
  if (object.is_undefined()) return runtime.Fail(std::string(object.why()));
  if (!object.is_sequence() || object.sequence().type > SequenceType::kRange) {
    *out = NoElement(object, Value());
    return true;
  }
  const SequenceObject& sequence = object.sequence();
  SliceBounds bounds{};
  if (!ResolveSlice(runtime, start, stop, step, static_cast<int64_t>(sequence.items.size()),
                    &bounds)) {
    return false;
  }
  if (sequence.type == SequenceType::kRange) {
    int64_t first, last, stride;
    if (__builtin_mul_overflow(bounds.start, sequence.step, &first) ||
        __builtin_add_overflow(first, sequence.start, &first) ||
        __builtin_mul_overflow(bounds.stop, sequence.step, &last) ||
        __builtin_add_overflow(last, sequence.start, &last) ||
        __builtin_mul_overflow(bounds.step, sequence.step, &stride)) {
      return Overflow(runtime);
    }
    return runtime.MakeRange(first, last, stride, out);
  }
  std::vector<Value> items;
  items.reserve(static_cast<size_t>(bounds.count));
  int64_t index = bounds.start;
  for (int64_t i = 0; i < bounds.count; ++i) {
    items.push_back(sequence.items[static_cast<size_t>(index)]);
    if (i + 1 < bounds.count) index += bounds.step;
  }
  const SequenceType type =
      sequence.type == SequenceType::kTuple || sequence.type == SequenceType::kGroup
          ? SequenceType::kTuple
          : SequenceType::kList;
  return runtime.MakeSequence(type, std::move(items), out);
}

bool Iterate(Runtime& runtime, const Value& value, Value* out) {
  std::vector<Value> items;
  switch (value.kind()) {
    case Kind::kUndefined:
      break;
    case Kind::kSequence: {
      SequenceObject& sequence = value.sequence();
      if (sequence.type != SequenceType::kIterator) {
        *out = value;
        return true;
      }
      items.assign(sequence.items.begin() + static_cast<ptrdiff_t>(sequence.taken),
                   sequence.items.end());
      sequence.taken = sequence.items.size();
      break;
    }
    case Kind::kDict:
      for (const auto& [key, item] : value.dict().entries) items.push_back(key);
      break;
    case Kind::kString: {
      const MarkedText& text = value.text();
      if (!runtime.Charge(static_cast<int64_t>(text.size()))) return false;
      for (size_t at = 0; at < text.size();) {
        const size_t begin = at;
        DecodeAt(text.view(), at, &at);
        Value character;
        if (!runtime.MakeString(text.Slice(begin, at), &character)) return false;
        items.push_back(std::move(character));
      }
      break;
    }
    default:
      return runtime.Fail(Format("'{}' object is not iterable", TypeName(value)));
  }
  return runtime.MakeSequence(SequenceType::kList, std::move(items), out);
}

}  // namespace deepinfer::jinja
