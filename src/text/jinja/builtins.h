// The functions templates may use: filters, tests, methods and globals, in tables by name.
#pragma once

#include <span>
#include <string_view>

#include "text/jinja/ast.h"
#include "text/jinja/runtime.h"

namespace deepinfer::jinja {

struct BuiltinEntry {
  std::string_view name;
  Builtin function;
};

// nullptr when there is none of that name.
Builtin FindFilter(std::string_view name);
Builtin FindTest(std::string_view name);
Builtin FindGlobal(std::string_view name);
// A method of the value's type. Methods that would change the value exist and refuse.
Builtin FindMethod(const Value& value, std::string_view name);

std::span<const BuiltinEntry> TextFilters();
std::span<const BuiltinEntry> SequenceFilters();
std::span<const BuiltinEntry> StringMethods();
std::span<const BuiltinEntry> StringSearchMethods();

struct Parameter {
  std::string_view name;
  enum Need { kRequired, kOptional } need = kOptional;
};
// Assigns arguments to parameters; absent ones stay undefined. Fails on too many, unknown, doubled
// or missing ones. `values` has one element a parameter.
bool Bind(Runtime& runtime, std::string_view function, const CallArgs& args,
          std::span<const Parameter> parameters, Value* values);
// Typed reads of a bound argument; an undefined one gives the fallback.
bool ReadInt(Runtime& runtime, std::string_view what, const Value& value, int64_t fallback,
             int64_t* out);

// Calls a filter or test by name (map, select and their kin).
bool CallByName(Runtime& runtime, Builtin (*find)(std::string_view), std::string_view kind,
                const Value& name, const Value& input, CallArgs& args, Value* out);
// Item access with a dotted path ("function.name", "0.id", an int). A `fallback` that is neither
// undefined nor none replaces each step that is undefined.
bool GetPath(Runtime& runtime, const Value& value, const Value& path, Value* out,
             const Value& fallback = {});

}  // namespace deepinfer::jinja
