#include "text/jinja/value.h"

#include <bit>
#include <cmath>

#include "base/check.h"
#include "base/hash.h"
#include "text/jinja/loop.h"

namespace deepinfer::jinja {
namespace {

constexpr size_t kIndexedDictMin = 9;

// Seeded with the table's address, so that keys cannot be prepared to collide.
uint64_t SeedOf(const DictObject* dict) { return reinterpret_cast<uintptr_t>(dict); }

bool IsTuple(SequenceType type) {
  return type == SequenceType::kTuple || type == SequenceType::kGroup;
}

bool SameItems(const std::vector<Value>& a, const std::vector<Value>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!Equals(a[i], b[i])) return false;
  }
  return true;
}

bool SameSequences(const Value& a, const Value& b) {
  if (a.object() == b.object()) return true;
  const SequenceObject& x = a.sequence();
  const SequenceObject& y = b.sequence();
  const bool same_type = x.type == y.type || (IsTuple(x.type) && IsTuple(y.type));
  if (!same_type || x.type == SequenceType::kIterator || x.type == SequenceType::kValues) {
    return false;
  }
  return SameItems(x.items, y.items);
}

bool SameDicts(const DictObject& a, const DictObject& b) {
  if (a.entries.size() != b.entries.size()) return false;
  for (const auto& [key, value] : a.entries) {
    const Value* other = b.Find(key);
    if (other == nullptr || !Equals(value, *other)) return false;
  }
  return true;
}

bool SameNumbers(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return a.integer() == b.integer();
  return a.real() == b.real();
}

}  // namespace

Value Value::Bool(bool value) {
  Value result(Kind::kBool, nullptr);
  result.number_.integer = 0;
  result.number_.boolean = value;
  return result;
}

Value Value::Int(int64_t value) {
  Value result(Kind::kInt, nullptr);
  result.number_.integer = value;
  return result;
}

Value Value::Float(double value) {
  Value result(Kind::kFloat, nullptr);
  result.number_.real = value;
  return result;
}

Value Value::String(MarkedText text) {
  auto object = std::make_shared<StringObject>();
  object->text = std::move(text);
  return {Kind::kString, std::move(object)};
}

Value Value::Undefined(std::string why) {
  auto object = std::make_shared<UndefinedObject>();
  object->why = std::move(why);
  return {Kind::kUndefined, std::move(object)};
}

const MarkedText& Value::text() const {
  DI_DCHECK(kind_ == Kind::kString || kind_ == Kind::kBigInt);
  return static_cast<const StringObject&>(*object_).text;
}
bool Value::is_markup() const {
  return is_string() && static_cast<const StringObject&>(*object_).markup;
}
SequenceObject& Value::sequence() const {
  DI_DCHECK(kind_ == Kind::kSequence);
  return static_cast<SequenceObject&>(*object_);
}
const DictObject& Value::dict() const {
  DI_DCHECK(kind_ == Kind::kDict);
  return static_cast<const DictObject&>(*object_);
}
NamespaceObject& Value::ns() const {
  DI_DCHECK(kind_ == Kind::kNamespace);
  return static_cast<NamespaceObject&>(*object_);
}
CallableObject& Value::callable() const {
  DI_DCHECK(kind_ == Kind::kCallable);
  return static_cast<CallableObject&>(*object_);
}
LoopObject& Value::loop() const {
  DI_DCHECK(kind_ == Kind::kLoop);
  return static_cast<LoopObject&>(*object_);
}

int64_t Value::weight() const {
  if (kind_ == Kind::kString) return 1 + static_cast<int64_t>(text().size() / 64);
  return object_ == nullptr ? 1 : object_->weight;
}

std::string_view Value::why() const {
  if (kind_ != Kind::kUndefined || object_ == nullptr) return "the value is undefined";
  return static_cast<const UndefinedObject&>(*object_).why;
}

const Value* DictObject::Find(const Value& key) const {
  if (entries.size() < kIndexedDictMin) {
    for (const auto& [k, v] : entries) {
      if (Equals(k, key)) return &v;
    }
    return nullptr;
  }
  const auto [first, last] = index.equal_range(HashOf(key, SeedOf(this)));
  for (auto it = first; it != last; ++it) {
    if (Equals(entries[it->second].first, key)) return &entries[it->second].second;
  }
  return nullptr;
}

const Value* DictObject::Find(std::string_view key) const {
  if (entries.size() < kIndexedDictMin) {
    for (const auto& [k, v] : entries) {
      if (k.is_string() && k.str() == key) return &v;
    }
    return nullptr;
  }
  const auto [first, last] = index.equal_range(HashText(key, SeedOf(this)));
  for (auto it = first; it != last; ++it) {
    const Value& k = entries[it->second].first;
    if (k.is_string() && k.str() == key) return &entries[it->second].second;
  }
  return nullptr;
}

void DictObject::Set(Value key, Value value) {
  if (const Value* found = Find(key)) {
    *const_cast<Value*>(found) = std::move(value);
    return;
  }
  entries.emplace_back(std::move(key), std::move(value));
  if (entries.size() < kIndexedDictMin) return;
  if (index.empty()) {
    for (size_t i = 0; i + 1 < entries.size(); ++i) {
      index.emplace(HashOf(entries[i].first, SeedOf(this)), i);
    }
  }
  index.emplace(HashOf(entries.back().first, SeedOf(this)), entries.size() - 1);
}

const Value* NamespaceObject::Find(std::string_view name) const {
  for (const auto& [key, value] : attributes) {
    if (key == name) return &value;
  }
  return nullptr;
}

bool IsHashable(const Value& value) {
  if (value.is_dict()) return false;
  if (!value.is_sequence()) return true;
  const SequenceObject& sequence = value.sequence();
  switch (sequence.type) {
    case SequenceType::kTuple:
    case SequenceType::kGroup:
      for (const Value& item : sequence.items) {
        if (!IsHashable(item)) return false;
      }
      return true;
    case SequenceType::kRange:
    case SequenceType::kIterator:
      return true;
    default:
      return false;
  }
}

uint64_t HashOf(const Value& value, uint64_t seed) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 1;
    case Kind::kNone:
      return 2;
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
      return std::bit_cast<uint64_t>(value.real() == 0 ? 0.0 : value.real()) * 0x9E3779B97F4A7C15U;
    case Kind::kBigInt:
    case Kind::kString:
      return HashText(value.str(), seed);
    case Kind::kSequence: {
      uint64_t hash = 3;
      for (const Value& item : value.sequence().items) hash = hash * 31 + HashOf(item, seed);
      return hash;
    }
    default:
      return reinterpret_cast<uintptr_t>(value.object());
  }
}

bool Equals(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return SameNumbers(a, b);
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kBigInt:
    case Kind::kString:
      return a.str() == b.str();
    case Kind::kSequence:
      return SameSequences(a, b);
    case Kind::kDict:
      return a.object() == b.object() || SameDicts(a.dict(), b.dict());
    default:
      return a.object() == b.object();
  }
}

bool Truthy(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
      return value.boolean();
    case Kind::kInt:
      return value.integer() != 0;
    case Kind::kFloat:
      return value.real() != 0;
    case Kind::kString:
      return !value.text().empty();
    case Kind::kSequence:
      return value.sequence().type == SequenceType::kIterator || !value.sequence().items.empty();
    case Kind::kDict:
      return !value.dict().entries.empty();
    case Kind::kLoop:
      return value.loop().length() > 0;
    default:
      return true;
  }
}

std::string_view TypeName(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
    case Kind::kBigInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kCallable:
      return "function";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kSequence:
      break;
  }
  switch (value.sequence().type) {
    case SequenceType::kList:
      return "list";
    case SequenceType::kTuple:
      return "tuple";
    case SequenceType::kGroup:
      return "_GroupTuple";
    case SequenceType::kRange:
      return "range";
    case SequenceType::kKeys:
      return "dict_keys";
    case SequenceType::kValues:
      return "dict_values";
    case SequenceType::kItems:
      return "dict_items";
    case SequenceType::kIterator:
      return "generator";
  }
  return "object";
}

}  // namespace deepinfer::jinja
