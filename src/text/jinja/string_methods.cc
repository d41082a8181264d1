// Methods of str that change or classify a text. Those that search it are in string_search.cc.
#include <utf8proc.h>

#include <algorithm>

#include "base/format.h"
#include "text/jinja/builtins.h"
#include "text/jinja/operators.h"
#include "text/jinja/text_ops.h"
#include "text/jinja/value_text.h"

namespace deepinfer::jinja {
namespace {

template <MarkedText (*kMap)(const MarkedText&)>
bool Mapped(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  return Bind(runtime, "str method", args, {}, nullptr) &&
         runtime.ChargeBytes(self.text().size() * 4) && runtime.MakeString(kMap(self.text()), out);
}

// str.title: a letter after an uncased character starts a word.
MarkedText TitleCase(const MarkedText& text) {
  bool in_word = false;
  return MapCodePoints(text, [&](size_t at, char32_t c, std::string* out) {
    if (in_word) {
      AppendLower(out, text.view(), at);
    } else {
      AppendTitle(out, c);
    }
    in_word = IsCased(c);
  });
}

MarkedText SwapCase(const MarkedText& text) {
  return MapCodePoints(text, [&](size_t at, char32_t c, std::string* out) {
    if (IsUpper(c)) {
      AppendLower(out, text.view(), at);
    } else {
      AppendUpper(out, c);
    }
  });
}

MarkedText CaseFold(const MarkedText& text) {
  return MapCodePoints(text, [&](size_t, char32_t c, std::string* out) {
    utf8proc_int32_t folded[4];
    int boundary = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), folded,
                                                           4, UTF8PROC_CASEFOLD, &boundary);
    for (utf8proc_ssize_t i = 0; i < std::min<utf8proc_ssize_t>(count, 4); ++i) {
      AppendUtf8(out, static_cast<char32_t>(folded[i]));
    }
  });
}

template <Side kSide>
bool StripMethod(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {{"chars"}};
  Value chars;
  if (!Bind(runtime, "strip", args, kParameters, &chars)) return false;
  const MarkedText* set = nullptr;
  const bool given = !args.positional.empty() && !chars.is_none();
  if (given && !NeedText(runtime, "strip arg", chars, &set)) return false;
  if (!runtime.ChargeBytes(self.text().size() * (set == nullptr ? 1 : 1 + set->size() / 16))) {
    return false;
  }
  return runtime.MakeString(Strip(self.text(), set, kSide), out);
}

template <Side kSide>
bool PadMethod(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {{"width", Parameter::kRequired}, {"fillchar"}};
  Value bound[2];
  int64_t width;
  if (!Bind(runtime, "pad", args, kParameters, bound) ||
      !ReadInt(runtime, "width", bound[0], 0, &width)) {
    return false;
  }
  const MarkedText space(" ", Trust::kTrusted);
  const MarkedText* fill = &space;
  if (!bound[1].is_undefined() && !NeedText(runtime, "fillchar", bound[1], &fill)) return false;
  return PadText(runtime, self.text(), width, *fill, kSide, out);
}

bool ZeroFill(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {{"width", Parameter::kRequired}};
  Value bound, digits;
  int64_t width;
  if (!Bind(runtime, "zfill", args, kParameters, &bound) ||
      !ReadInt(runtime, "width", bound, 0, &width)) {
    return false;
  }
  const MarkedText& text = self.text();
  const bool sign = !text.empty() && (text.bytes()[0] == '-' || text.bytes()[0] == '+');
  if (!PadText(runtime, text.Slice(sign ? 1 : 0, text.size()), sign ? width - 1 : width,
               MarkedText("0", Trust::kTrusted), Side::kRight, &digits)) {
    return false;
  }
  MarkedText result = text.Slice(0, sign ? 1 : 0);
  result.Append(digits.text());
  return runtime.MakeString(std::move(result), out);
}

template <bool kPrefix>
bool RemoveEnd(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {{"affix", Parameter::kRequired}};
  Value bound;
  const MarkedText* affix;
  if (!Bind(runtime, "removeprefix", args, kParameters, &bound) ||
      !NeedText(runtime, "the argument", bound, &affix)) {
    return false;
  }
  const MarkedText& text = self.text();
  if constexpr (kPrefix) {
    const bool found = text.view().starts_with(affix->view());
    return runtime.MakeString(text.Slice(found ? affix->size() : 0, text.size()), out);
  } else {
    const bool found = text.view().ends_with(affix->view());
    return runtime.MakeString(text.Slice(0, text.size() - (found ? affix->size() : 0)), out);
  }
}

bool JoinMethod(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {{"iterable", Parameter::kRequired}};
  Value iterable, items;
  if (!Bind(runtime, "join", args, kParameters, &iterable) || !Iterate(runtime, iterable, &items)) {
    return false;
  }
  MarkedText result;
  const auto& list = items.sequence().items;
  for (size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_string()) {
      return runtime.Fail(
          Format("sequence item {}: expected str instance, {} found", i, TypeName(list[i])));
    }
    if (i > 0) result.Append(self.text());
    if (!runtime.CheckSize(result.size()) || !runtime.ChargeBytes(self.text().size()) ||
        !AppendStr(runtime, list[i], &result)) {
      return false;
    }
  }
  return runtime.MakeString(std::move(result), out);
}

// One replacement field of str.format: "", "0", "name", each with an optional !r or !s.
bool AppendField(Runtime& runtime, std::string_view field, const CallArgs& args, size_t* next,
                 MarkedText* out) {
  bool repr = false;
  if (field.ends_with("!r") || field.ends_with("!s")) {
    repr = field.back() == 'r';
    field.remove_suffix(2);
  }
  const Value* value = nullptr;
  if (field.find_first_of(":.[!") != std::string_view::npos) {
    return runtime.Fail(Format("format field '{{{}}}' is not supported; use a plain name", field));
  }
  if (field.find_first_not_of("0123456789") == std::string_view::npos && field.size() < 9) {
    const size_t index = field.empty() ? (*next)++ : std::stoul(std::string(field));
    if (index < args.positional.size()) value = &args.positional[index];
  }
  for (const auto& [name, named] : args.named) {
    if (name == field) value = &named;
  }
  if (value == nullptr) return runtime.Fail(Format("format() has no argument '{}'", field));
  return repr ? Repr(runtime, *value, out) : AppendStr(runtime, *value, out);
}

bool FormatMethod(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  const MarkedText& text = self.text();
  MarkedText result;
  size_t next = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t brace = std::min(text.view().find_first_of("{}", at), text.size());
    result.Append(text, at, brace);
    if (brace == text.size()) break;
    if (brace + 1 < text.size() && text.bytes()[brace + 1] == text.bytes()[brace]) {
      result.Append(text, brace, brace + 1);
      at = brace + 2;
      continue;
    }
    const size_t close = text.view().find('}', brace);
    if (text.bytes()[brace] == '}' || close == std::string_view::npos) {
      return runtime.Fail("a single brace in a format string");
    }
    if (!AppendField(runtime, text.view().substr(brace + 1, close - brace - 1), args, &next,
                     &result)) {
      return false;
    }
    at = close + 1;
  }
  return runtime.MakeString(std::move(result), out);
}

// str.isX: every character holds and there is at least one.
template <bool (*kClass)(char32_t)>
bool AllAre(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  if (!Bind(runtime, "str method", args, {}, nullptr)) return false;
  if (!runtime.ChargeBytes(self.text().size() * 4)) return false;
  bool all = !self.text().empty();
  for (size_t at = 0; all && at < self.text().size();) {
    all = kClass(DecodeAt(self.str(), at, &at));
  }
  *out = Value::Bool(all);
  return true;
}

bool IsAscii(char32_t c) { return c < 0x80; }

bool IsAsciiMethod(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  if (!AllAre<IsAscii>(runtime, self, args, out)) return false;
  if (self.text().empty()) *out = Value::Bool(true);
  return true;
}

bool CaseTest(Runtime& runtime, const Value& self, std::string_view name, Value* out) {
  CallArgs none;
  return FindTest(name)(runtime, self, none, out);
}
bool IsLowerMethod(Runtime& runtime, const Value& self, CallArgs&, Value* out) {
  return CaseTest(runtime, self, "lower", out);
}
bool IsUpperMethod(Runtime& runtime, const Value& self, CallArgs&, Value* out) {
  return CaseTest(runtime, self, "upper", out);
}

bool IsTitleMethod(Runtime& runtime, const Value& self, CallArgs&, Value* out) {
  if (!runtime.ChargeBytes(self.text().size() * 4)) return false;
  bool in_word = false, any = false, title = true;
  for (size_t at = 0; at < self.text().size();) {
    const char32_t c = DecodeAt(self.str(), at, &at);
    if (IsUpper(c)) {
      title = title && !in_word;
    } else if (IsLower(c)) {
      title = title && in_word;
    }
    in_word = IsCased(c);
    any = any || in_word;
  }
  *out = Value::Bool(any && title);
  return true;
}

constexpr BuiltinEntry kMethods[] = {
    {"upper", Mapped<UpperCase>},
    {"lower", Mapped<LowerCase>},
    {"capitalize", Mapped<Capitalize>},
    {"title", Mapped<TitleCase>},
    {"swapcase", Mapped<SwapCase>},
    {"casefold", Mapped<CaseFold>},
    {"strip", StripMethod<Side::kBoth>},
    {"lstrip", StripMethod<Side::kLeft>},
    {"rstrip", StripMethod<Side::kRight>},
    {"center", PadMethod<Side::kBoth>},
    {"ljust", PadMethod<Side::kLeft>},
    {"rjust", PadMethod<Side::kRight>},
    {"zfill", ZeroFill},
    {"removeprefix", RemoveEnd<true>},
    {"removesuffix", RemoveEnd<false>},
    {"join", JoinMethod},
    {"format", FormatMethod},
    {"isspace", AllAre<IsSpace>},
    {"isalpha", AllAre<IsAlpha>},
    {"isdigit", AllAre<IsDecimal>},
    {"isdecimal", AllAre<IsDecimal>},
    {"isnumeric", AllAre<IsDecimal>},
    {"isalnum", AllAre<IsAlnum>},
    {"isprintable", AllAre<IsPrintable>},
    {"isascii", IsAsciiMethod},
    {"islower", IsLowerMethod},
    {"isupper", IsUpperMethod},
    {"istitle", IsTitleMethod},
};

}  // namespace

std::span<const BuiltinEntry> StringMethods() { return kMethods; }

}  // namespace deepinfer::jinja
