#include "base/json.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>

#include "base/check.h"
#include "base/format.h"
#include "base/hash.h"

namespace deepinfer {
namespace {

constexpr size_t kIndexedMembersMin = 16;  // below it a scan is faster than a hash
constexpr size_t kErrorBytesMax = 240;

// Not predictable by who writes the keys, so that nobody can choose colliding ones.
uint64_t IndexSeed() {
  static const uint64_t seed = (uint64_t{std::random_device{}()} << 32) | std::random_device{}();
  return seed;
}

const char* NameOf(Json::Kind kind) {
  switch (kind) {
    case Json::Kind::kNull:
      return "null";
    case Json::Kind::kBool:
      return "a boolean";
    case Json::Kind::kNumber:
      return "a number";
    case Json::Kind::kString:
      return "a string";
    case Json::Kind::kArray:
      return "an array";
    case Json::Kind::kObject:
      return "an object";
  }
  return "?";
}

Status WrongKind(const char* wanted, Json::Kind found) {
  return Invalid(Format("expected {}, found {}", wanted, NameOf(found)));
}

// Bytes of the UTF-8 sequence at `text`, 0 if it is not valid (overlong, surrogate, cut off).
size_t Utf8SequenceBytes(const char* text, size_t left) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto follows = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  if (lead < 0xE0) return left >= 2 && follows(1) ? 2 : 0;
  if (lead < 0xF0) {
    if (left < 3 || !follows(1) || !follows(2)) return 0;
    if (lead == 0xE0 && byte(1) < 0xA0) return 0;
    return lead == 0xED && byte(1) > 0x9F ? 0 : 3;
  }
  if (left < 4 || !follows(1) || !follows(2) || !follows(3)) return 0;
  if (lead == 0xF0 && byte(1) < 0x90) return 0;
  return lead == 0xF4 && byte(1) > 0x8F ? 0 : 4;
}

// The shortest text that reads back as `value`, laid out as Python's repr.
void AppendDouble(std::string* out, double value) {
  char buffer[64];
  const double magnitude = std::fabs(value);
  const bool fixed = value == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value,
                                 fixed ? std::chars_format::fixed : std::chars_format::scientific);
  out->append(buffer, end.ptr);
  if (fixed && std::find(buffer, end.ptr, '.') == end.ptr) out->append(".0");
}

bool ParseDouble(const std::string& text, double* value) {
  const auto end = std::from_chars(text.data(), text.data() + text.size(), *value);
  // Underflow is reported as out of range; strtod gives the nearest value, as other readers do.
  if (end.ec == std::errc::result_out_of_range) *value = std::strtod(text.c_str(), nullptr);
  return std::isfinite(*value);
}

bool ParseInt(const std::string& text, int64_t* value) {
  const char* last = text.data() + text.size();
  const auto end = std::from_chars(text.data(), last, *value);
  return end.ec == std::errc() && end.ptr == last;
}

void AppendNewline(std::string* out, int indent, int level) {
  out->push_back('\n');
  out->append(static_cast<size_t>(indent) * static_cast<size_t>(level), ' ');
}

}  // namespace

struct Json::ObjectData {
  std::vector<Member> members;
  // Open addressing, size a power of two, at most half full; entries are member index + 1.
  std::vector<uint32_t> slots;

  size_t Find(std::string_view key) const {
    if (slots.empty()) {
      for (size_t i = 0; i < members.size(); ++i) {
        if (members[i].first == key) return i;
      }
      return members.size();
    }
    const size_t slot = SlotOf(key);
    return slots[slot] == 0 ? members.size() : slots[slot] - 1;
  }

  // The slot that holds `key`, or the empty one where it belongs.
  size_t SlotOf(std::string_view key) const {
    const size_t mask = slots.size() - 1;
    size_t slot = HashText(key, IndexSeed()) & mask;
    while (slots[slot] != 0 && members[slots[slot] - 1].first != key) slot = (slot + 1) & mask;
    return slot;
  }

  // Rebuilds the index; the first key found twice, or nullptr.
  const std::string* BuildIndex() {
    if (members.size() < kIndexedMembersMin) {
      for (size_t i = 1; i < members.size(); ++i) {
        for (size_t j = 0; j < i; ++j) {
          if (members[i].first == members[j].first) return &members[i].first;
        }
      }
      return nullptr;
    }
    slots.assign(std::bit_ceil(members.size() * 2), 0);
    for (size_t i = 0; i < members.size(); ++i) {
      uint32_t& slot = slots[SlotOf(members[i].first)];
      if (slot != 0) return &members[i].first;
      slot = static_cast<uint32_t>(i + 1);
    }
    return nullptr;
  }

  void Append(std::string key, Json value) {
    members.emplace_back(std::move(key), std::move(value));
    if (members.size() < kIndexedMembersMin) return;
    if (slots.size() < members.size() * 2) {
      BuildIndex();
    } else {
      slots[SlotOf(members.back().first)] = static_cast<uint32_t>(members.size());
    }
  }
};

Json::ObjectBox::ObjectBox() : data(new ObjectData) {}
Json::ObjectBox::ObjectBox(const ObjectBox& other) : data(new ObjectData(*other.data)) {}
void Json::ObjectBox::Destroy() { delete data; }

namespace {

// Walks the text and leaves its position where the handler can read it for messages.
class TextIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  TextIterator(const char* at, const char** cursor) : at_(at), cursor_(cursor) {}
  reference operator*() const { return *at_; }
  TextIterator& operator++() {
    *cursor_ = ++at_;
    return *this;
  }
  bool operator==(const TextIterator& other) const { return at_ == other.at_; }
  bool operator!=(const TextIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** cursor_;
};

}  // namespace

// Receives the parser's events and builds the value in place: the stack holds pointers into
// containers, which stay valid because only the innermost container ever grows.
class Json::ParseHandler {
 public:
  ParseHandler(std::string_view text, const JsonLimits& limits)
      : text_(text), limits_(limits), cursor_(text.data()) {}

  const char** cursor() { return &cursor_; }
  const std::string& error() const { return error_; }
  Json TakeRoot() { return std::move(root_); }

  bool null() { return Add(Json()); }
  bool boolean(bool value) { return Add(Json::Bool(value)); }
  bool number_unsigned(uint64_t value) {
    char buffer[24];
    const auto end = std::to_chars(buffer, buffer + sizeof buffer, value);
    return AddNumber(std::string(buffer, end.ptr));
  }
  // Called for literals with a minus sign only, so that zero here was spelled "-0".
  bool number_integer(int64_t value) {
    if (value == 0) return AddNumber("-0");
    char buffer[24];
    const auto end = std::to_chars(buffer, buffer + sizeof buffer, value);
    return AddNumber(std::string(buffer, end.ptr));
  }
  bool number_float(double, const std::string& text) { return AddNumber(text); }
  bool string(std::string& text) {
    Json value;
    value.value_.emplace<static_cast<size_t>(Kind::kString)>(std::move(text));
    return Add(std::move(value));
  }
  bool binary(std::vector<uint8_t>&) { return Fail("binary values are not JSON"); }
  bool start_object(size_t) { return Open(Json::Object()); }
  bool start_array(size_t) { return Open(Json::Array()); }
  bool key(std::string& text) {
    key_ = std::move(text);
    return true;
  }
  bool end_array() {
    stack_.pop_back();
    return true;
  }
  bool end_object() {
    ObjectData* object = std::get<ObjectBox>(stack_.back()->value_).data;
    if (const std::string* key = object->BuildIndex()) {
      return Fail(Format("the object that ends here holds the key '{}' twice", Shorten(*key)));
    }
    stack_.pop_back();
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) {
    std::string_view reason = error.what();
    if (const size_t end = reason.find("] "); end != reason.npos) reason.remove_prefix(end + 2);
    // Ours already names the place; the library's "parse error at line 1, column 2: " goes.
    if (reason.starts_with("parse error")) {
      if (const size_t end = reason.find(": "); end != reason.npos) reason.remove_prefix(end + 2);
    }
    return Fail(Shorten(reason));
  }

 private:
  static std::string Shorten(std::string_view text) {
    std::string quoted;
    AppendJsonString(&quoted, text.substr(0, kErrorBytesMax));  // bytes may be no UTF-8
    std::string plain = quoted.substr(1, quoted.size() - 2);
    if (text.size() > kErrorBytesMax) plain += "...";
    return plain;
  }

  bool Fail(std::string reason) {
    const size_t read = static_cast<size_t>(cursor_ - text_.data());
    const std::string_view before = text_.substr(0, read);
    const size_t line_start = before.rfind('\n');
    const size_t line = 1 + static_cast<size_t>(std::count(before.begin(), before.end(), '\n'));
    const size_t column = line_start == before.npos ? read : read - line_start - 1;
    error_ = Format("JSON line {}, column {}: {}", line, column, reason);
    return false;
  }

  bool Open(Json container) {
    if (stack_.size() >= static_cast<size_t>(std::max(limits_.depth_max, 0))) {
      return Fail(Format("nested deeper than the limit of {} levels", limits_.depth_max));
    }
    if (!Add(std::move(container))) return false;
    stack_.push_back(last_);
    return true;
  }

  bool AddNumber(std::string text) {
    Json value;
    value.value_.emplace<Number>(Number{std::move(text)});
    return Add(std::move(value));
  }

  bool Add(Json value) {
    if (++values_ > limits_.values_max) {
      return Fail(Format("more values than the limit of {}", limits_.values_max));
    }
    if (stack_.empty()) {
      root_ = std::move(value);
      last_ = &root_;
    } else if (auto* items = std::get_if<std::vector<Json>>(&stack_.back()->value_)) {
      last_ = &items->emplace_back(std::move(value));
    } else {
      auto& members = std::get<ObjectBox>(stack_.back()->value_).data->members;
      last_ = &members.emplace_back(std::move(key_), std::move(value)).second;
    }
    return true;
  }

  std::string_view text_;
  JsonLimits limits_;
  const char* cursor_;
  std::string error_;
  Json root_;
  Json* last_ = nullptr;
  std::vector<Json*> stack_;
  std::string key_;
  size_t values_ = 0;
};

Result<Json> Json::Parse(std::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.bytes_max) {
    return Status(StatusCode::kTooLarge,
                  Format("JSON of {} bytes; the limit is {}", text.size(), limits.bytes_max));
  }
  if (text.empty()) return Invalid("JSON line 1, column 0: the text is empty");
  ParseHandler handler(text, limits);
  const TextIterator first(text.data(), handler.cursor());
  const TextIterator last(text.data() + text.size(), handler.cursor());
  try {
    if (!nlohmann::json::sax_parse(first, last, &handler)) return Invalid(handler.error());
  } catch (const std::bad_alloc&) {
    return Exhausted(Format("out of memory while reading JSON of {} bytes", text.size()));
  }
  return handler.TakeRoot();
}

Json Json::Bool(bool value) {
  Json json;
  json.value_ = value;
  return json;
}

Json Json::Int(int64_t value) {
  char buffer[24];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value);
  Json json;
  json.value_ = Number{std::string(buffer, end.ptr)};
  return json;
}

Json Json::Double(double value) {
  Json json;
  if (!std::isfinite(value)) return json;
  Number number;
  AppendDouble(&number.text, value);
  json.value_ = std::move(number);
  return json;
}

Json Json::String(std::string value) {
  Json json;
  json.value_ = std::move(value);
  return json;
}

Json Json::Array() {
  Json json;
  json.value_.emplace<std::vector<Json>>();
  return json;
}

Json Json::Object() {
  Json json;
  json.value_.emplace<ObjectBox>();
  return json;
}

Result<bool> Json::AsBool() const {
  if (const bool* value = std::get_if<bool>(&value_)) return *value;
  return WrongKind("a boolean", kind());
}

Result<int64_t> Json::AsInt() const {
  const Number* number = std::get_if<Number>(&value_);
  if (number == nullptr) return WrongKind("an integer", kind());
  int64_t value = 0;
  if (ParseInt(number->text, &value)) return value;
  // "3.0" and "1e3" are integers too, as far as a double holds them exactly.
  double real = 0;
  constexpr double kExactMax = 9007199254740992.0;  // 2^53
  if (ParseDouble(number->text, &real) && std::floor(real) == real &&
      std::fabs(real) <= kExactMax && number->text.find_first_of(".eE") != std::string::npos) {
    return static_cast<int64_t>(real);
  }
  return Invalid(Format("expected an integer between {} and {}, found {:.40}", INT64_MIN, INT64_MAX,
                        number->text));
}

Result<double> Json::AsDouble() const {
  const Number* number = std::get_if<Number>(&value_);
  if (number == nullptr) return WrongKind("a number", kind());
  double value = 0;
  if (ParseDouble(number->text, &value)) return value;
  return Invalid(Format("expected a number that a double can hold, found {:.40}", number->text));
}

Result<std::string> Json::AsString() const {
  if (const std::string* value = std::get_if<std::string>(&value_)) return *value;
  return WrongKind("a string", kind());
}

const std::string& Json::string() const {
  static const std::string empty;
  if (const Number* number = std::get_if<Number>(&value_)) return number->text;
  const std::string* value = std::get_if<std::string>(&value_);
  return value == nullptr ? empty : *value;
}

const std::vector<Json>& Json::items() const {
  static const std::vector<Json> empty;
  const auto* value = std::get_if<std::vector<Json>>(&value_);
  return value == nullptr ? empty : *value;
}

const std::vector<Json::Member>& Json::members() const {
  static const std::vector<Member> empty;
  const auto* value = std::get_if<ObjectBox>(&value_);
  return value == nullptr ? empty : value->data->members;
}

const Json* Json::Find(std::string_view key) const {
  const auto* box = std::get_if<ObjectBox>(&value_);
  if (box == nullptr) return nullptr;
  const size_t found = box->data->Find(key);
  return found == box->data->members.size() ? nullptr : &box->data->members[found].second;
}

Status Json::CheckObject() const { return is_object() ? Status() : WrongKind("an object", kind()); }

namespace {

template <typename T>
Result<T> Named(Result<T> result, std::string_view key) {
  if (result.ok()) return result;
  return Status(result.status().code(), Format("'{}': {}", key, result.status().message()))
      .WithParam(std::string(key));
}

}  // namespace

Result<bool> Json::GetBool(std::string_view key, bool fallback) const {
  DI_TRY(CheckObject());
  const Json* value = Find(key);
  return value == nullptr || value->is_null() ? fallback : Named(value->AsBool(), key);
}

Result<int64_t> Json::GetInt(std::string_view key, int64_t fallback) const {
  DI_TRY(CheckObject());
  const Json* value = Find(key);
  return value == nullptr || value->is_null() ? fallback : Named(value->AsInt(), key);
}

Result<double> Json::GetDouble(std::string_view key, double fallback) const {
  DI_TRY(CheckObject());
  const Json* value = Find(key);
  return value == nullptr || value->is_null() ? fallback : Named(value->AsDouble(), key);
}

Result<std::string> Json::GetString(std::string_view key, std::string fallback) const {
  DI_TRY(CheckObject());
  const Json* value = Find(key);
  if (value == nullptr || value->is_null()) return fallback;
  return Named(value->AsString(), key);
}

Json& Json::Push(Json value) {
  auto* items = std::get_if<std::vector<Json>>(&value_);
  DI_CHECK(items != nullptr, "Push into {}", NameOf(kind()));
  return items->emplace_back(std::move(value));
}

Json& Json::Set(std::string key, Json value) {
  auto* box = std::get_if<ObjectBox>(&value_);
  DI_CHECK(box != nullptr, "Set in {}", NameOf(kind()));
  const size_t found = box->data->Find(key);
  if (found == box->data->members.size()) {
    box->data->Append(std::move(key), std::move(value));
  } else {
    box->data->members[found].second = std::move(value);
  }
  return box->data->members[found].second;
}

std::string Json::Dump(int indent) const {
  std::string out;
  DumpLevel(&out, indent, 0);
  return out;
}

void Json::DumpTo(std::string* out, int indent) const { DumpLevel(out, indent, 0); }

void Json::DumpLevel(std::string* out, int indent, int level) const {
  const auto separate = [&](bool first) {
    if (!first) out->push_back(',');
    if (indent >= 0) AppendNewline(out, indent, level + 1);
  };
  switch (kind()) {
    case Kind::kNull:
      out->append("null");
      return;
    case Kind::kBool:
      out->append(std::get<bool>(value_) ? "true" : "false");
      return;
    case Kind::kNumber:
      out->append(std::get<Number>(value_).text);
      return;
    case Kind::kString:
      AppendJsonString(out, std::get<std::string>(value_));
      return;
    case Kind::kArray: {
      out->push_back('[');
      for (const Json& item : items()) {
        separate(&item == items().data());
        item.DumpLevel(out, indent, level + 1);
      }
      if (indent >= 0 && !items().empty()) AppendNewline(out, indent, level);
      out->push_back(']');
      return;
    }
    case Kind::kObject: {
      out->push_back('{');
      for (const Member& member : members()) {
        separate(&member == members().data());
        AppendJsonString(out, member.first);
        out->append(indent >= 0 ? ": " : ":");
        member.second.DumpLevel(out, indent, level + 1);
      }
      if (indent >= 0 && !members().empty()) AppendNewline(out, indent, level);
      out->push_back('}');
      return;
    }
  }
}

bool Json::operator==(const Json& other) const {
  if (kind() != other.kind()) return false;
  switch (kind()) {
    case Kind::kNull:
      return true;
    case Kind::kBool:
      return std::get<bool>(value_) == std::get<bool>(other.value_);
    case Kind::kNumber: {
      if (string() == other.string()) return true;
      int64_t left_int = 0;
      int64_t right_int = 0;
      if (ParseInt(string(), &left_int) && ParseInt(other.string(), &right_int)) {
        return left_int == right_int;
      }
      double left = 0;
      double right = 0;
      return ParseDouble(string(), &left) && ParseDouble(other.string(), &right) && left == right;
    }
    case Kind::kString:
      return string() == other.string();
    case Kind::kArray:
      return items() == other.items();
    case Kind::kObject:
      return members().size() == other.members().size() &&
             std::all_of(members().begin(), members().end(), [&](const Member& member) {
               const Json* value = other.Find(member.first);
               return value != nullptr && *value == member.second;
             });
  }
  return false;
}

namespace {

// `c` is a quote, a backslash, a control character, or a byte that is no UTF-8.
void AppendEscape(std::string* out, unsigned char c) {
  static constexpr char kHex[] = "0123456789abcdef";
  static constexpr std::string_view kFrom = "\"\\\n\r\t\b\f";
  static constexpr std::string_view kTo = "\"\\nrtbf";
  if (c >= 0x80) {
    out->append("\xEF\xBF\xBD");
  } else if (const size_t at = kFrom.find(static_cast<char>(c)); at != kFrom.npos) {
    out->push_back('\\');
    out->push_back(kTo[at]);
  } else {
    const char escape[] = {'\\', 'u', '0', '0', kHex[c >> 4], kHex[c & 15]};
    out->append(escape, sizeof escape);
  }
}

}  // namespace

void AppendJsonString(std::string* out, std::string_view text) {
  out->push_back('"');
  size_t done = 0;  // everything before it is written
  for (size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c < 0x80 && c != '"' && c != '\\') {
      ++i;
      continue;
    }
    if (c >= 0x80) {
      const size_t bytes = Utf8SequenceBytes(text.data() + i, text.size() - i);
      if (bytes != 0) {
        i += bytes;
        continue;
      }
    }
    out->append(text, done, i - done);
    AppendEscape(out, c);
    done = ++i;
  }
  out->append(text, done, text.size() - done);
  out->push_back('"');
}

}  // namespace deepinfer
