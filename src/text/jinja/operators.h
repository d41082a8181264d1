// Python's operators over Values. Each returns false after Runtime::Fail.
#pragma once

#include <string_view>

#include "text/jinja/ast.h"
#include "text/jinja/runtime.h"

namespace deepinfer::jinja {

bool Apply(Runtime& runtime, BinaryOp op, const Value& a, const Value& b, Value* out);
bool Compare(Runtime& runtime, CompareOp op, const Value& a, const Value& b, bool* out);
// a < b for sorting; fails for kinds that have no order.
bool LessThan(Runtime& runtime, const Value& a, const Value& b, bool* out);
bool Contains(Runtime& runtime, const Value& container, const Value& item, bool* out);
bool Negate(Runtime& runtime, const Value& value, Value* out);
bool Length(Runtime& runtime, const Value& value, int64_t* out);

// object.name: methods first, then items, else undefined.
bool GetAttribute(Runtime& runtime, const Value& object, std::string_view name, Value* out);
// object[index]: items first, then methods, else undefined.
bool GetItem(Runtime& runtime, const Value& object, const Value& index, Value* out);
// object[start:stop:step]; undefined kinds stand for missing parts.
bool GetSlice(Runtime& runtime, const Value& object, const Value& start, const Value& stop,
              const Value& step, Value* out);
// Everything that iterating over `value` yields, as a sequence; consumes an iterator.
bool Iterate(Runtime& runtime, const Value& value, Value* out);

// "the_text" % value.
bool PercentFormat(Runtime& runtime, const Value& format, const Value& value, Value* out);

}  // namespace deepinfer::jinja
