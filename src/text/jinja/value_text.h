// Values as text: Python's str and repr, and json.dumps as transformers calls it.
#pragma once

#include <optional>
#include <string>

#include "text/jinja/runtime.h"

namespace deepinfer::jinja {

std::string FloatRepr(double value);

// str(value) appended to `out`, marks kept. Text made from a container is trusted only when every
// string in it is.
bool AppendStr(Runtime& runtime, const Value& value, MarkedText* out);
// str(value) as a string value; a string is returned as it is.
bool ToStr(Runtime& runtime, const Value& value, Value* out);
bool Repr(Runtime& runtime, const Value& value, MarkedText* out);

struct JsonStyle {
  std::optional<std::string> indent;  // one level
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool ensure_ascii = false;
  bool sort_keys = false;
};
bool ToJson(Runtime& runtime, const Value& value, const JsonStyle& style, MarkedText* out);

}  // namespace deepinfer::jinja
