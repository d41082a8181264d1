// "text %s" % values, as Python's printf-style formatting.
#include <cstdio>

#include "base/format.h"
#include "text/jinja/operators.h"
#include "text/jinja/text_ops.h"
#include "text/jinja/value_text.h"

namespace deepinfer::jinja {
namespace {

struct Spec {
  std::string flags;
  int width = 0;
  int precision = -1;
  char type = 0;
};

constexpr int kWidthMax = 1000;

class PercentFormatter {
 public:
  PercentFormatter(Runtime* runtime, const MarkedText& format, const Value& value)
      : runtime_(*runtime), format_(format), value_(value) {
    is_tuple_ = value.is_sequence() && value.sequence().type == SequenceType::kTuple;
  }

  bool Run(Value* out) {
    for (size_t at = 0; at < format_.size();) {
      const size_t percent = std::min(format_.view().find('%', at), format_.size());
      result_.Append(format_, at, percent);
      at = percent;
      if (at < format_.size() && !Conversion(&at)) return false;
    }
    const size_t given = is_tuple_ ? value_.sequence().items.size() : 1;
    if (used_ < given && !value_.is_dict()) {
      return runtime_.Fail("not all arguments converted during string formatting");
    }
    return runtime_.MakeString(std::move(result_), out);
  }

 private:
  char Peek(size_t at) const { return at < format_.size() ? format_.bytes()[at] : '\0'; }

  bool ReadNumber(size_t* at, int* number) {
    *number = 0;
    while (Peek(*at) >= '0' && Peek(*at) <= '9') {
      *number = *number * 10 + (Peek((*at)++) - '0');
      if (*number > kWidthMax) {
        return runtime_.Fail(Format("a width of more than {} in a format", kWidthMax));
      }
    }
    return true;
  }

  bool Conversion(size_t* at) {
    ++*at;
    Spec spec;
    Value argument;
    bool named = false;
    if (Peek(*at) == '(') {
      const size_t close = format_.view().find(')', *at);
      if (close == std::string_view::npos) return runtime_.Fail("incomplete format key");
      if (!value_.is_dict()) return runtime_.Fail("format requires a mapping");
      const std::string_view key = format_.view().substr(*at + 1, close - *at - 1);
      const Value* found = value_.dict().Find(key);
      if (found == nullptr) return runtime_.Fail(Format("the format has no value '{}'", key));
      argument = *found;
      named = true;
      *at = close + 1;
    }
    while (std::string_view("-+ #0").find(Peek(*at)) != std::string_view::npos && Peek(*at) != 0) {
      spec.flags.push_back(Peek((*at)++));
      if (spec.flags.size() > 5) return runtime_.Fail("too many flags in a format");
    }
    if (!ReadNumber(at, &spec.width)) return false;
    if (Peek(*at) == '.') {
      ++*at;
      if (!ReadNumber(at, &spec.precision)) return false;
    }
    spec.type = Peek(*at);
    if (spec.type == 0) return runtime_.Fail("incomplete format");
    ++*at;
    if (spec.type == '%') {
      result_.Append("%", Trust::kTrusted);
      return true;
    }
    return (named || NextArgument(&argument)) && Append(spec, argument);
  }

  bool NextArgument(Value* argument) {
    if (is_tuple_) {
      if (used_ >= value_.sequence().items.size()) {
        return runtime_.Fail("not enough arguments for format string");
      }
      *argument = value_.sequence().items[used_++];
      return true;
    }
    if (used_++ > 0) return runtime_.Fail("not enough arguments for format string");
    *argument = value_;
    return true;
  }

  bool Append(const Spec& spec, const Value& argument) {
    switch (spec.type) {
      case 's':
      case 'r':
      case 'a': {
        MarkedText text;
        if (!(spec.type == 's' ? AppendStr(runtime_, argument, &text)
                               : Repr(runtime_, argument, &text))) {
          return false;
        }
        return Pad(spec, spec.precision < 0
                             ? std::move(text)
                             : text.Slice(0, ByteOffset(text.view(),
                                                        static_cast<size_t>(spec.precision))));
      }
      case 'c':
        return Character(spec, argument);
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o':
        return Integer(spec, argument);
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        return Real(spec, argument);
      default:
        return runtime_.Fail(Format("unsupported format character '{}'", spec.type));
    }
  }

  bool Character(const Spec& spec, const Value& argument) {
    if (argument.is_string() && CountCodePoints(argument.str()) == 1) {
      return Pad(spec, argument.text());
    }
    if (!argument.is_int() || argument.integer() < 0 || argument.integer() > 0x10FFFF ||
        (argument.integer() >= 0xD800 && argument.integer() < 0xE000)) {
      return runtime_.Fail("%c requires a character");
    }
    std::string text;
    AppendUtf8(&text, static_cast<char32_t>(argument.integer()));
    return Pad(spec, MarkedText(std::move(text), Trust::kTrusted));
  }

  bool Integer(const Spec& spec, const Value& argument) {
    int64_t value;
    if (argument.is_integral()) {
      value = argument.integer();
    } else if (argument.is_float() &&
               std::string_view("diu").find(spec.type) != std::string_view::npos &&
               argument.real() > -9e18 && argument.real() < 9e18) {
      value = static_cast<int64_t>(argument.real());
    } else {
      return NeedsNumber(spec, argument);
    }
    const bool negative = value < 0;
    const uint64_t magnitude =
        negative ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
    std::string digits = spec.type == 'x'   ? Format("{:x}", magnitude)
                         : spec.type == 'X' ? Format("{:X}", magnitude)
                         : spec.type == 'o' ? Format("{:o}", magnitude)
                                            : Format("{}", magnitude);
    if (spec.precision > static_cast<int>(digits.size())) {
      digits.insert(0, static_cast<size_t>(spec.precision) - digits.size(), '0');
    }
    if (spec.flags.find('#') != std::string::npos &&
        std::string_view("xXo").find(spec.type) != std::string_view::npos) {
      digits.insert(0, {'0', spec.type});
    }
    return Number(spec, negative, std::move(digits));
  }

  bool Real(const Spec& spec, const Value& argument) {
    if (!argument.is_number()) return NeedsNumber(spec, argument);
    const double value = argument.real();
    const char pattern[] = {'%', '.', '*', spec.type, '\0'};
    char buffer[1500];
    const double magnitude = value < 0 || (value == 0 && 1 / value < 0) ? -value : value;
    const int size = std::snprintf(buffer, sizeof buffer, pattern,
                                   spec.precision < 0 ? 6 : spec.precision, magnitude);
    return Number(spec, magnitude != value || (value == 0 && 1 / value < 0),
                  std::string(buffer, static_cast<size_t>(size)));
  }

  bool NeedsNumber(const Spec& spec, const Value& argument) {
    if (argument.is_undefined()) return runtime_.Fail(std::string(argument.why()));
    return runtime_.Fail(
        Format("%{} format: a number is required, not {}", spec.type, TypeName(argument)));
  }

  bool Number(const Spec& spec, bool negative, std::string digits) {
    std::string sign = negative                                    ? "-"
                       : spec.flags.find('+') != std::string::npos ? "+"
                       : spec.flags.find(' ') != std::string::npos ? " "
                                                                   : "";
    const bool zeros =
        spec.flags.find('0') != std::string::npos && spec.flags.find('-') == std::string::npos;
    const size_t length = sign.size() + digits.size();
    if (zeros && static_cast<size_t>(spec.width) > length) {
      digits.insert(0, static_cast<size_t>(spec.width) - length, '0');
    }
    return Pad(spec, MarkedText(sign + digits, Trust::kTrusted));
  }

  bool Pad(const Spec& spec, MarkedText text) {
    Value padded;
    const Side side = spec.flags.find('-') != std::string::npos ? Side::kLeft : Side::kRight;
    if (!PadText(runtime_, text, spec.width, MarkedText(" ", Trust::kTrusted), side, &padded)) {
      return false;
    }
    result_.Append(padded.text());
    return runtime_.CheckSize(result_.size());
  }

  Runtime& runtime_;
  const MarkedText& format_;
  const Value& value_;
  bool is_tuple_ = false;
  size_t used_ = 0;
  MarkedText result_;
};

}  // namespace

bool PercentFormat(Runtime& runtime, const Value& format, const Value& value, Value* out) {
  return PercentFormatter(&runtime, format.text(), value).Run(out);
}

}  // namespace deepinfer::jinja
