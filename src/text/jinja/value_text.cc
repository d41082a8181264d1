#include "text/jinja/value_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/format.h"
#include "text/jinja/code_points.h"
#include "text/jinja/operators.h"

namespace deepinfer::jinja {
namespace {

void AppendHex(std::string* out, const char* prefix, uint32_t value, int digits) {
  out->append(prefix);
  constexpr char kHex[] = "0123456789abcdef";
  for (int shift = (digits - 1) * 4; shift >= 0; shift -= 4) {
    out->push_back(kHex[value >> shift & 15]);
  }
}

// repr of a str.
void AppendQuoted(std::string* out, std::string_view text) {
  const bool use_double =
      text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = use_double ? '"' : '\'';
  out->push_back(quote);
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = DecodeAt(text, at, &at);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out->push_back('\\');
      out->push_back(static_cast<char>(c));
    } else if (c == '\n') {
      out->append("\\n");
    } else if (c == '\r') {
      out->append("\\r");
    } else if (c == '\t') {
      out->append("\\t");
    } else if (c >= 0x20 && c != 0x7F && (c < 0x7F || IsPrintable(c))) {
      out->append(text.substr(begin, at - begin));
    } else if (c < 0x100) {
      AppendHex(out, "\\x", c, 2);
    } else if (c < 0x10000) {
      AppendHex(out, "\\u", c, 4);
    } else {
      AppendHex(out, "\\U", c, 8);
    }
  }
  out->push_back(quote);
}

// A string of json.dumps.
void AppendJsonQuoted(std::string* out, std::string_view text, bool ensure_ascii) {
  out->push_back('"');
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = DecodeAt(text, at, &at);
    switch (c) {
      case '"':
        out->append("\\\"");
        continue;
      case '\\':
        out->append("\\\\");
        continue;
      case '\n':
        out->append("\\n");
        continue;
      case '\r':
        out->append("\\r");
        continue;
      case '\t':
        out->append("\\t");
        continue;
      case '\f':
        out->append("\\f");
        continue;
      case '\b':
        out->append("\\b");
        continue;
      default:
        break;
    }
    if (c < 0x20 || (ensure_ascii && c > 0x7E && c < 0x10000)) {
      AppendHex(out, "\\u", c, 4);
    } else if (ensure_ascii && c >= 0x10000) {
      AppendHex(out, "\\u", 0xD800 + ((c - 0x10000) >> 10), 4);
      AppendHex(out, "\\u", 0xDC00 + ((c - 0x10000) & 0x3FF), 4);
    } else {
      out->append(text.substr(begin, at - begin));
    }
  }
  out->push_back('"');
}

// Writes repr or JSON of nested values into one text and notes whether any part is untrusted.
class Writer {
 public:
  explicit Writer(Runtime* runtime) : runtime_(*runtime) {}

  bool Repr(const Value& value);
  bool Json(const Value& value, const JsonStyle& style, int level);
  MarkedText Take() && { return {std::move(out_), trusted_ ? Trust::kTrusted : Trust::kUntrusted}; }

 private:
  // Every value costs a step and every byte counts, so shared parts cannot explode.
  bool Enter() {
    if (++depth_ > runtime_.nesting_max()) {
      return runtime_.Fail("a value is nested too deep to be written");
    }
    const size_t grown = out_.size() - charged_;
    charged_ = out_.size();
    return runtime_.ChargeBytes(grown) && (out_.size() < kCheckMin || CheckTotal());
  }
  bool CheckTotal() {
    if (out_.size() < next_check_) return true;
    next_check_ = out_.size() + out_.size() / 8;
    return runtime_.CheckSize(out_.size());
  }
  bool Leave(bool ok) {
    --depth_;
    return ok;
  }
  bool ReprItems(const SequenceObject& sequence, std::string_view open, std::string_view close);
  bool ReprDict(const Value& value);
  bool ReprScalar(const Value& value);
  bool JsonArray(const SequenceObject& sequence, const JsonStyle& style, int level);
  bool JsonObject(const DictObject& dict, const JsonStyle& style, int level);
  bool JsonKey(const Value& key, const JsonStyle& style);
  void JsonFloat(double value);
  void Newline(const JsonStyle& style, int level);
  std::string_view Text(const MarkedText& text) {
    trusted_ = trusted_ && text.AllTrusted();
    return text.view();
  }

  static constexpr size_t kCheckMin = size_t{1} << 16;
  Runtime& runtime_;
  std::string out_;
  bool trusted_ = true;
  int depth_ = 0;
  size_t charged_ = 0;
  size_t next_check_ = kCheckMin;
};

bool Writer::ReprItems(const SequenceObject& sequence, std::string_view open,
                       std::string_view close) {
  out_ += open;
  for (size_t i = 0; i < sequence.items.size(); ++i) {
    if (i > 0) out_ += ", ";
    if (!Repr(sequence.items[i])) return false;
  }
  const bool tuple = sequence.type == SequenceType::kTuple || sequence.type == SequenceType::kGroup;
  if (tuple && sequence.items.size() == 1) out_ += ",";
  out_ += close;
  return true;
}

bool Writer::ReprDict(const Value& value) {
  out_ += "{";
  bool first = true;
  for (const auto& [key, item] : value.dict().entries) {
    if (!std::exchange(first, false)) out_ += ", ";
    if (!Repr(key)) return false;
    out_ += ": ";
    if (!Repr(item)) return false;
  }
  out_ += "}";
  return true;
}

bool Writer::ReprScalar(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      out_ += "Undefined";
      break;
    case Kind::kNone:
      out_ += "None";
      break;
    case Kind::kBool:
      out_ += value.boolean() ? "True" : "False";
      break;
    case Kind::kInt:
      out_ += Format("{}", value.integer());
      break;
    case Kind::kBigInt:
      out_ += value.str();
      break;
    case Kind::kFloat:
      out_ += FloatRepr(value.real());
      break;
    case Kind::kString:
      if (value.is_markup()) out_ += "Markup(";
      AppendQuoted(&out_, Text(value.text()));
      if (value.is_markup()) out_ += ")";
      break;
    case Kind::kCallable:
      out_ += Format("<function {}>", value.callable().name);
      break;
    case Kind::kLoop:
      out_ += Format("<LoopContext {}/{}>", value.loop().index0 + 1, value.loop().length());
      break;
    default:
      break;
  }
  return true;
}

bool Writer::Repr(const Value& value) {
  if (!Enter()) return false;
  if (value.is_dict()) return Leave(ReprDict(value));
  if (value.kind() == Kind::kNamespace) {
    out_ += "<Namespace {";
    bool first = true;
    for (const auto& [name, item] : value.ns().attributes) {
      if (!std::exchange(first, false)) out_ += ", ";
      AppendQuoted(&out_, name);
      out_ += ": ";
      if (!Repr(item)) return false;
    }
    out_ += "}>";
    return Leave(true);
  }
  if (!value.is_sequence()) return Leave(ReprScalar(value));
  const SequenceObject& sequence = value.sequence();
  switch (sequence.type) {
    case SequenceType::kList:
      return Leave(ReprItems(sequence, "[", "]"));
    case SequenceType::kTuple:
    case SequenceType::kGroup:
      return Leave(ReprItems(sequence, "(", ")"));
    case SequenceType::kKeys:
      return Leave(ReprItems(sequence, "dict_keys([", "])"));
    case SequenceType::kValues:
      return Leave(ReprItems(sequence, "dict_values([", "])"));
    case SequenceType::kItems:
      return Leave(ReprItems(sequence, "dict_items([", "])"));
    case SequenceType::kIterator:
      out_ += "<generator object>";
      break;
    case SequenceType::kRange:
      out_ += Format("range({}, {}", sequence.start, sequence.stop);
      if (sequence.step != 1) out_ += Format(", {}", sequence.step);
      out_ += ")";
      break;
  }
  return Leave(true);
}

void Writer::Newline(const JsonStyle& style, int level) {
  if (!style.indent) return;
  out_ += "\n";
  for (int i = 0; i < level; ++i) out_ += *style.indent;
}

void Writer::JsonFloat(double value) {
  if (std::isnan(value)) {
    out_ += "NaN";
  } else if (std::isinf(value)) {
    out_ += value < 0 ? "-Infinity" : "Infinity";
  } else {
    out_ += FloatRepr(value);
  }
}

bool Writer::JsonArray(const SequenceObject& sequence, const JsonStyle& style, int level) {
  if (sequence.items.empty()) {
    out_ += "[]";
    return true;
  }
  out_ += "[";
  for (size_t i = 0; i < sequence.items.size(); ++i) {
    if (i > 0) out_ += style.item_separator;
    Newline(style, level + 1);
    if (!Json(sequence.items[i], style, level + 1)) return false;
  }
  Newline(style, level);
  out_ += "]";
  return true;
}

bool Writer::JsonKey(const Value& key, const JsonStyle& style) {
  switch (key.kind()) {
    case Kind::kString:
      AppendJsonQuoted(&out_, Text(key.text()), style.ensure_ascii);
      return true;
    case Kind::kNone:
      out_ += "\"null\"";
      return true;
    case Kind::kBool:
      out_ += key.boolean() ? "\"true\"" : "\"false\"";
      return true;
    case Kind::kInt:
      out_ += Format("\"{}\"", key.integer());
      return true;
    case Kind::kFloat:
      out_ += "\"";
      JsonFloat(key.real());
      out_ += "\"";
      return true;
    default:
      return runtime_.Fail(
          Format("keys must be str, int, float, bool or None, not {}", TypeName(key)));
  }
}

bool Writer::JsonObject(const DictObject& dict, const JsonStyle& style, int level) {
  if (dict.entries.empty()) {
    out_ += "{}";
    return true;
  }
  std::vector<const std::pair<Value, Value>*> entries;
  for (const auto& entry : dict.entries) entries.push_back(&entry);
  if (style.sort_keys) {
    bool ok = true;
    std::stable_sort(entries.begin(), entries.end(), [&](const auto* a, const auto* b) {
      bool less = false;
      ok = ok && LessThan(runtime_, a->first, b->first, &less);
      return ok && less;
    });
    if (!ok) return false;
  }
  out_ += "{";
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i > 0) out_ += style.item_separator;
    Newline(style, level + 1);
    if (!JsonKey(entries[i]->first, style)) return false;
    out_ += style.key_separator;
    if (!Json(entries[i]->second, style, level + 1)) return false;
  }
  Newline(style, level);
  out_ += "}";
  return true;
}

bool Writer::Json(const Value& value, const JsonStyle& style, int level) {
  if (!Enter()) return false;
  switch (value.kind()) {
    case Kind::kNone:
      out_ += "null";
      return Leave(true);
    case Kind::kBool:
      out_ += value.boolean() ? "true" : "false";
      return Leave(true);
    case Kind::kInt:
      out_ += Format("{}", value.integer());
      return Leave(true);
    case Kind::kBigInt:
      out_ += value.str();
      return Leave(true);
    case Kind::kFloat:
      JsonFloat(value.real());
      return Leave(true);
    case Kind::kString:
      AppendJsonQuoted(&out_, Text(value.text()), style.ensure_ascii);
      return Leave(true);
    case Kind::kDict:
      return Leave(JsonObject(value.dict(), style, level));
    case Kind::kSequence:
      if (value.sequence().type <= SequenceType::kGroup) {
        return Leave(JsonArray(value.sequence(), style, level));
      }
      break;
    default:
      break;
  }
  return runtime_.Fail(Format("Object of type {} is not JSON serializable", TypeName(value)));
}

}  // namespace

std::string FloatRepr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto shortest =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  // d.ddde±xx to sign, digits and decimal exponent.
  std::string_view text(buffer, static_cast<size_t>(shortest.ptr - buffer));
  std::string out;
  if (text[0] == '-') {
    out = "-";
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  int exponent = 0;
  const bool negative = text[e + 1] == '-';
  std::from_chars(text.data() + e + 2, text.data() + text.size(), exponent);
  if (negative) exponent = -exponent;
  std::string digits;
  for (char c : text.substr(0, e)) {
    if (c != '.') digits.push_back(c);
  }
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {  // as Python's repr
    out += digits[0];
    if (count > 1) out += "." + digits.substr(1);
    out += Format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  } else if (exponent < 0) {
    out += "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  } else if (exponent + 1 >= count) {
    out += digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
  } else {
    out += digits.substr(0, static_cast<size_t>(exponent) + 1) + "." +
           digits.substr(static_cast<size_t>(exponent) + 1);
  }
  return out;
}

bool Repr(Runtime& runtime, const Value& value, MarkedText* out) {
  Writer writer(&runtime);
  if (!writer.Repr(value)) return false;
  out->Append(std::move(writer).Take());
  return runtime.CheckSize(out->size());
}

bool AppendStr(Runtime& runtime, const Value& value, MarkedText* out) {
  if (value.is_undefined()) return true;
  if (!value.is_string()) return Repr(runtime, value, out);
  if (!runtime.CheckSize(out->size() + value.text().size())) return false;
  out->Append(value.text());
  return runtime.ChargeBytes(value.text().size());
}

bool ToStr(Runtime& runtime, const Value& value, Value* out) {
  if (value.is_string()) {
    *out = value;
    return true;
  }
  MarkedText text;
  return AppendStr(runtime, value, &text) && runtime.MakeString(std::move(text), out);
}

bool ToJson(Runtime& runtime, const Value& value, const JsonStyle& style, MarkedText* out) {
  Writer writer(&runtime);
  if (!writer.Json(value, style, 0)) return false;
  out->Append(std::move(writer).Take());
  return true;
}

}  // namespace deepinfer::jinja
