// Values of the template language, with Python's kinds. Cheap to copy: large ones share an
// immutable object (namespaces, loops and iterators alone change). A Value never outlives its
// Runtime, except constants of a compiled template, which belong to no budget and are only read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/jinja/marked_text.h"

namespace deepinfer::jinja {

class Runtime;
class Value;
struct CallArgs;

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kBigInt,  // an integer literal of JSON outside int64: only its digits are known
  kString,
  kSequence,
  kDict,
  kNamespace,
  kCallable,
  kLoop,
};

// Bytes that live values of one Render hold; objects count themselves in and out.
struct MemoryUse {
  size_t live = 0;
  size_t live_max = 0;
};

struct Object {
  Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() {
    if (use != nullptr) use->live -= footprint;
  }
  // Called once, when the object is complete.
  void Count(MemoryUse* memory, size_t bytes) {
    use = memory;
    footprint = bytes;
    if (use != nullptr) use->live += bytes;
  }
  int depth = 1;       // containers: 1 + the deepest element, so that nesting can be limited
  int64_t weight = 1;  // values in it when shared parts are written out: what comparing may cost
  MemoryUse* use = nullptr;
  size_t footprint = 0;
};

struct StringObject;
struct SequenceObject;
struct DictObject;
struct NamespaceObject;
struct CallableObject;
struct LoopObject;
struct UndefinedObject;

class Value {
 public:
  Value() = default;  // undefined, without a name
  static Value None() { return Value(Kind::kNone, nullptr); }
  static Value Bool(bool value);
  static Value Int(int64_t value);
  static Value Float(double value);
  // Constants and inputs, outside any budget; Runtime::MakeString is for results.
  static Value String(MarkedText text);
  static Value Undefined(std::string why);

  Value(Kind kind, std::shared_ptr<Object> object) : kind_(kind), object_(std::move(object)) {}

  Kind kind() const { return kind_; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_bool() const { return kind_ == Kind::kBool; }
  bool is_int() const { return kind_ == Kind::kInt; }
  bool is_float() const { return kind_ == Kind::kFloat; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_sequence() const { return kind_ == Kind::kSequence; }
  bool is_dict() const { return kind_ == Kind::kDict; }
  // int or bool: what Python accepts where it wants an integer.
  bool is_integral() const { return is_int() || is_bool(); }
  bool is_number() const { return is_integral() || is_float(); }

  bool boolean() const { return number_.boolean; }
  int64_t integer() const { return is_bool() ? (number_.boolean ? 1 : 0) : number_.integer; }
  double real() const { return is_float() ? number_.real : static_cast<double>(integer()); }

  bool is_markup() const;  // see StringObject

  // The kind must match.
  const MarkedText& text() const;
  std::string_view str() const { return text().view(); }
  SequenceObject& sequence() const;
  const DictObject& dict() const;
  NamespaceObject& ns() const;
  CallableObject& callable() const;
  LoopObject& loop() const;
  const Object* object() const { return object_.get(); }
  int depth() const { return object_ == nullptr ? 0 : object_->depth; }
  int64_t weight() const;

  // Why an undefined value is undefined ("'x' is undefined").
  std::string_view why() const;

 private:
  Kind kind_ = Kind::kUndefined;
  union {
    bool boolean;
    int64_t integer = 0;
    double real;
  } number_;
  std::shared_ptr<Object> object_;  // shared by the copies of one value
};

struct UndefinedObject : Object {
  std::string why;
};

struct StringObject : Object {
  MarkedText text;
  bool markup = false;  // made by safe or escape: adding plain text to it escapes that text
};

enum class SequenceType : uint8_t {
  kList,
  kTuple,
  kGroup,  // a pair of groupby: a tuple (grouper, list)
  kRange,
  kKeys,  // views of a dict
  kValues,
  kItems,
  kIterator,  // a generator: yields its items once
};

struct SequenceObject : Object {
  SequenceType type = SequenceType::kList;
  std::vector<Value> items;
  size_t taken = 0;                       // kIterator: how many items were consumed
  int64_t start = 0, stop = 0, step = 1;  // kRange, for printing
};

// Insertion-ordered; keys are hashable values. Filled once, then only read.
struct DictObject : Object {
  std::vector<std::pair<Value, Value>> entries;
  std::unordered_multimap<uint64_t, size_t> index;  // built past a handful of entries

  const Value* Find(const Value& key) const;
  const Value* Find(std::string_view key) const;
  // Replaces the value of an equal key (the key stays, as in Python).
  void Set(Value key, Value value);
};

struct NamespaceObject : Object {
  std::vector<std::pair<std::string, Value>> attributes;
  const Value* Find(std::string_view name) const;
};

// A function, method or macro; called through Invoke.
struct CallableObject : Object {
  std::string name;
  virtual bool Invoke(Runtime& runtime, CallArgs& args, Value* out) = 0;
  // Attribute access (macro.name, cycler.next); false when there is none.
  virtual bool Attribute(std::string_view, Value*) { return false; }
};

struct CallArgs {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Python's hash/eq classes: True == 1 == 1.0. Only for hashable values.
bool IsHashable(const Value& value);
uint64_t HashOf(const Value& value, uint64_t seed);
// Python's ==. Costs up to the smaller weight; depth is bounded by the nesting limit of values.
bool Equals(const Value& a, const Value& b);
bool Truthy(const Value& value);

// "str", "int", "NoneType": for error messages.
std::string_view TypeName(const Value& value);

}  // namespace deepinfer::jinja
