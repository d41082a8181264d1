// Filters whose input is taken as text.
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
  Value text;
  return Bind(runtime, "filter", args, {}, nullptr) && ToStr(runtime, self, &text) &&
         runtime.ChargeBytes(text.text().size() * 4) && runtime.MakeString(kMap(text.text()), out);
}

// The filter's words begin after blanks, "-" and opening brackets.
MarkedText TitleWords(const MarkedText& text) {
  bool start = true;
  return MapCodePoints(text, [&](size_t at, char32_t c, std::string* out) {
    if (start) {
      AppendUpper(out, c);
    } else {
      AppendLower(out, text.view(), at);
    }
    start = IsSpace(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  });
}

bool FilterString(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  return Bind(runtime, "string", args, {}, nullptr) && ToStr(runtime, self, out);
}

bool FilterSafe(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  Value text;
  return Bind(runtime, "safe", args, {}, nullptr) && ToStr(runtime, self, &text) &&
         runtime.MakeMarkup(text.text(), out);
}

bool FilterEscape(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  Value text;
  return Bind(runtime, "escape", args, {}, nullptr) && ToStr(runtime, self, &text) &&
         runtime.ChargeBytes(text.text().size() * 4) &&
         runtime.MakeMarkup(self.is_markup() ? text.text() : EscapeHtml(text.text()), out);
}

bool FilterTrim(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {{"chars"}};
  Value chars, text;
  if (!Bind(runtime, "trim", args, kParameters, &chars) || !ToStr(runtime, self, &text)) {
    return false;
  }
  const MarkedText* set = nullptr;
  if (!chars.is_undefined() && !chars.is_none() &&
      !NeedText(runtime, "trim argument", chars, &set)) {
    return false;
  }
  return runtime.ChargeBytes(text.text().size() * (set == nullptr ? 1 : 1 + set->size() / 16)) &&
         runtime.MakeString(Strip(text.text(), set, Side::kBoth), out);
}

bool FilterReplace(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {
      {"old", Parameter::kRequired}, {"new", Parameter::kRequired}, {"count"}};
  Value bound[3], text, from, to;
  int64_t count;
  return Bind(runtime, "replace", args, kParameters, bound) && ToStr(runtime, self, &text) &&
         ToStr(runtime, bound[0], &from) && ToStr(runtime, bound[1], &to) &&
         ReadInt(runtime, "count", bound[2], -1, &count) &&
         ReplaceText(runtime, text.text(), from.text(), to.text(), count, out);
}

bool FilterCenter(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {{"width"}};
  Value bound, text;
  int64_t width;
  return Bind(runtime, "center", args, kParameters, &bound) &&
         ReadInt(runtime, "width", bound, 80, &width) && ToStr(runtime, self, &text) &&
         PadText(runtime, text.text(), width, MarkedText(" ", Trust::kTrusted), Side::kBoth, out);
}

bool FilterIndent(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {{"width"}, {"first"}, {"blank"}};
  Value bound[3];
  const MarkedText* text;
  if (!Bind(runtime, "indent", args, kParameters, bound) ||
      !NeedText(runtime, "the text to indent", self, &text)) {
    return false;
  }
  MarkedText indent;
  if (bound[0].is_string()) {
    indent = bound[0].text();
  } else {
    int64_t width;
    if (!ReadInt(runtime, "width", bound[0], 4, &width)) return false;
    if (width > 4096) return runtime.Fail("indent() of more than 4096 characters");
    indent.Append(std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' '),
                  Trust::kTrusted);
  }
  const MarkedText newline("\n", Trust::kTrusted);
  MarkedText padded = *text;  // Jinja2 splits the text with one newline added
  padded.Append(newline);
  const bool blank = Truthy(bound[2]);
  MarkedText result;
  bool first = true;
  for (const Line& line : SplitLines(padded.view())) {
    if (!first) result.Append(newline);
    const bool wanted = first ? Truthy(bound[1]) : blank || line.end > line.begin;
    if (wanted) result.Append(indent);
    result.Append(padded, line.begin, line.end);
    if (!runtime.CheckSize(result.size()) ||
        !runtime.Charge(1 + static_cast<int64_t>(indent.size() / 64))) {
      return false;
    }
    first = false;
  }
  return runtime.MakeString(std::move(result), out);
}

bool FilterTruncate(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {{"length"}, {"killwords"}, {"end"}, {"leeway"}};
  Value bound[4];
  int64_t length, leeway;
  const MarkedText* text;
  if (!Bind(runtime, "truncate", args, kParameters, bound) ||
      !NeedText(runtime, "the text to truncate", self, &text) ||
      !ReadInt(runtime, "length", bound[0], 255, &length) ||
      !ReadInt(runtime, "leeway", bound[3], 5, &leeway)) {
    return false;
  }
  const MarkedText dots("...", Trust::kTrusted);
  const MarkedText* end = &dots;
  if (!bound[2].is_undefined() && !NeedText(runtime, "end", bound[2], &end)) return false;
  const auto end_length = static_cast<int64_t>(CountCodePoints(end->view()));
  if (length < end_length || leeway < 0) {
    return runtime.Fail(Format("truncate() needs a length of at least {}", end_length));
  }
  const auto size = static_cast<int64_t>(CountCodePoints(text->view()));
  if (size <= leeway || size - leeway <= length) return runtime.MakeString(*text, out);
  size_t keep = ByteOffset(text->view(), static_cast<size_t>(length - end_length));
  if (!Truthy(bound[1])) {
    const size_t space = text->view().substr(0, keep).rfind(' ');
    if (space != std::string_view::npos) keep = space;
  }
  MarkedText result = text->Slice(0, keep);
  result.Append(*end);
  return runtime.MakeString(std::move(result), out);
}

bool FilterWordCount(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  Value text;
  if (!Bind(runtime, "wordcount", args, {}, nullptr) || !ToStr(runtime, self, &text) ||
      !runtime.ChargeBytes(text.text().size() * 4)) {
    return false;
  }
  int64_t count = 0;
  bool inside = false;
  for (size_t at = 0; at < text.text().size();) {
    const bool word = IsIdentifierPart(DecodeAt(text.str(), at, &at));
    count += word && !inside ? 1 : 0;
    inside = word;
  }
  *out = Value::Int(count);
  return true;
}

bool FilterFormat(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  Value text, value;
  if (!ToStr(runtime, self, &text)) return false;
  if (!args.named.empty()) {
    if (!args.positional.empty()) {
      return runtime.Fail("format takes positional or named arguments, not both");
    }
    auto dict = std::make_shared<DictObject>();
    for (auto& [name, item] : args.named) {
      dict->Set(Value::String(MarkedText(name, Trust::kTrusted)), std::move(item));
    }
    return runtime.MakeDict(std::move(dict), &value) && PercentFormat(runtime, text, value, out);
  }
  return runtime.MakeSequence(SequenceType::kTuple, std::move(args.positional), &value) &&
         PercentFormat(runtime, text, value, out);
}

MarkedText UrlQuote(const MarkedText& text) {
  return MapCodePoints(text, [&](size_t, char32_t c, std::string* out) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '_' || c == '.' || c == '-' || c == '~' || c == '/';
    std::string bytes;
    AppendUtf8(&bytes, c);
    if (plain) {
      *out += bytes;
      return;
    }
    for (char byte : bytes) *out += Format("%{:02X}", static_cast<unsigned char>(byte));
  });
}

bool ReadSeparators(Runtime& runtime, const Value& value, JsonStyle* style) {
  if (value.is_undefined() || value.is_none()) return true;
  const auto* items = value.is_sequence() ? &value.sequence().items : nullptr;
  constexpr size_t kSeparatorMax = 64;
  if (items == nullptr || items->size() != 2 || !(*items)[0].is_string() ||
      !(*items)[1].is_string() || (*items)[0].text().size() > kSeparatorMax ||
      (*items)[1].text().size() > kSeparatorMax) {
    return runtime.Fail("tojson separators must be two short strings");
  }
  style->item_separator = std::string((*items)[0].str());
  style->key_separator = std::string((*items)[1].str());
  return true;
}

bool FilterToJson(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {{"ensure_ascii"}, {"indent"}, {"separators"}, {"sort_keys"}};
  Value bound[4];
  if (!Bind(runtime, "tojson", args, kParameters, bound)) return false;
  JsonStyle style;
  style.ensure_ascii = Truthy(bound[0]);
  style.sort_keys = Truthy(bound[3]);
  const Value& indent = bound[1];
  if (indent.is_string() && indent.text().size() <= 64) {
    style.indent = std::string(indent.str());
  } else if (!indent.is_undefined() && !indent.is_none()) {
    int64_t width;
    if (!ReadInt(runtime, "indent", indent, 0, &width)) return false;
    if (width > 64) return runtime.Fail("tojson indent of more than 64");
    style.indent = std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
  }
  if (style.indent) style.item_separator.assign(1, ',');
  if (!ReadSeparators(runtime, bound[2], &style)) return false;
  MarkedText text;
  return ToJson(runtime, self, style, &text) && runtime.MakeString(std::move(text), out);
}

constexpr BuiltinEntry kFilters[] = {
    {"tojson", FilterToJson},
    {"trim", FilterTrim},
    {"string", FilterString},
    {"safe", FilterSafe},
    {"upper", Mapped<UpperCase>},
    {"lower", Mapped<LowerCase>},
    {"capitalize", Mapped<Capitalize>},
    {"title", Mapped<TitleWords>},
    {"replace", FilterReplace},
    {"indent", FilterIndent},
    {"center", FilterCenter},
    {"truncate", FilterTruncate},
    {"wordcount", FilterWordCount},
    {"format", FilterFormat},
    {"e", FilterEscape},
    {"escape", FilterEscape},
    {"forceescape", FilterEscape},
    {"urlencode", Mapped<UrlQuote>},
};

}  // namespace

std::span<const BuiltinEntry> TextFilters() { return kFilters; }

}  // namespace deepinfer::jinja
