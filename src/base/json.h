// JSON values: parsing under limits, typed getters that return Result, and a fast writer.
// The only header of the project for JSON; json.cc alone includes a JSON library.
// Object member order is kept; numbers keep their source text. A value owns everything it holds:
// moving is cheap, copying is deep. Const methods are safe from several threads at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "deepinfer/status.h"

namespace deepinfer {

struct JsonLimits {
  size_t bytes_max = size_t{64} << 20;
  int depth_max = 128;
  size_t values_max = size_t{16} << 20;
};

class Json {
 public:
  enum class Kind { kNull, kBool, kNumber, kString, kArray, kObject };
  using Member = std::pair<std::string, Json>;

  Json() = default;  // null
  static Json Bool(bool value);
  static Json Int(int64_t value);
  static Json Double(double value);  // not finite: null
  static Json String(std::string value);
  static Json Array();
  static Json Object();

  // Errors name line and column, or the limit that was passed. Rejects invalid UTF-8, NaN,
  // trailing text; a duplicate key is an error.
  static Result<Json> Parse(std::string_view text, const JsonLimits& limits = {});

  Kind kind() const { return static_cast<Kind>(value_.index()); }
  bool is_null() const { return kind() == Kind::kNull; }
  bool is_bool() const { return kind() == Kind::kBool; }
  bool is_number() const { return kind() == Kind::kNumber; }
  bool is_string() const { return kind() == Kind::kString; }
  bool is_array() const { return kind() == Kind::kArray; }
  bool is_object() const { return kind() == Kind::kObject; }

  // Typed access; the error says the kind found and the kind wanted.
  Result<bool> AsBool() const;
  Result<int64_t> AsInt() const;    // accepts 3 and 3.0, rejects 3.5 and out of int64
  Result<double> AsDouble() const;  // rejects what is not finite
  Result<std::string> AsString() const;
  // Unchecked views: the empty value when the kind differs.
  const std::string& string() const;           // text of a string, source text of a number
  const std::vector<Json>& items() const;      // of an array
  const std::vector<Member>& members() const;  // of an object, in source order

  // Object member or nullptr. O(1) for large objects (hashed), O(n) for small ones.
  const Json* Find(std::string_view key) const;
  // Member getters: absent or null gives `fallback`; the wrong kind is an error naming the key,
  // and so is asking a value that is no object.
  Result<bool> GetBool(std::string_view key, bool fallback) const;
  Result<int64_t> GetInt(std::string_view key, int64_t fallback) const;
  Result<double> GetDouble(std::string_view key, double fallback) const;
  Result<std::string> GetString(std::string_view key, std::string fallback) const;

  // Building.
  Json& Push(Json value);                  // array; returns the new element
  Json& Set(std::string key, Json value);  // object; replaces an equal key; returns the element

  // Compact text. indent >= 0: that many spaces a level, as Python's json.dumps(indent=).
  std::string Dump(int indent = -1) const;
  void DumpTo(std::string* out, int indent = -1) const;

  // Numbers compare by value, objects without regard to order.
  bool operator==(const Json& other) const;

 private:
  struct ObjectData;
  class ParseHandler;
  struct Number {
    std::string text;
  };
  // Owns an object's members; a class of its own because ObjectData is complete only in json.cc.
  class ObjectBox {
   public:
    ObjectBox();
    ObjectBox(const ObjectBox& other);
    ObjectBox(ObjectBox&& other) noexcept : data(std::exchange(other.data, nullptr)) {}
    ObjectBox& operator=(ObjectBox other) noexcept {
      std::swap(data, other.data);
      return *this;
    }
    ~ObjectBox() {
      if (data != nullptr) Destroy();
    }
    ObjectData* data;

   private:
    void Destroy();
  };
  Status CheckObject() const;
  void DumpLevel(std::string* out, int indent, int level) const;

  // Alternatives in the order of Kind.
  std::variant<std::monostate, bool, Number, std::string, std::vector<Json>, ObjectBox> value_;
};

// Appends `text` as a JSON string with quotes. Invalid UTF-8 becomes U+FFFD.
void AppendJsonString(std::string* out, std::string_view text);

}  // namespace deepinfer
