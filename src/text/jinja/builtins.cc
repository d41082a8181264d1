#include "text/jinja/builtins.h"

#include <algorithm>

#include "base/format.h"
#include "text/jinja/operators.h"

namespace deepinfer::jinja {
namespace {

Builtin FindIn(std::span<const BuiltinEntry> table, std::string_view name) {
  for (const BuiltinEntry& entry : table) {
    if (entry.name == name) return entry.function;
  }
  return nullptr;
}

// Python's sandbox for templates lets no call change a list or a dict.
bool RefuseChange(Runtime& runtime, const Value& self, CallArgs&, Value*) {
  return runtime.Fail(
      Format("a {} cannot be changed in a chat template; build a new one (a + b) instead",
             TypeName(self)));
}

bool DictGet(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {{"key", Parameter::kRequired}, {"default"}};
  Value bound[2];
  if (!Bind(runtime, "get", args, kParameters, bound)) return false;
  if (!IsHashable(bound[0])) {
    return runtime.Fail(Format("unhashable type: '{}'", TypeName(bound[0])));
  }
  const Value* found = self.dict().Find(bound[0]);
  const bool has_default = args.positional.size() + args.named.size() > 1;
  *out = found != nullptr ? *found : has_default ? bound[1] : Value::None();
  return runtime.Charge(bound[0].weight());
}

template <SequenceType kType>
bool DictView(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  if (!Bind(runtime, "dict view", args, {}, nullptr)) return false;
  std::vector<Value> items;
  for (const auto& [key, value] : self.dict().entries) {
    if constexpr (kType == SequenceType::kKeys) items.push_back(key);
    if constexpr (kType == SequenceType::kValues) items.push_back(value);
    if constexpr (kType == SequenceType::kItems) {
      Value pair;
      if (!runtime.MakeSequence(SequenceType::kTuple, {key, value}, &pair)) return false;
      items.push_back(std::move(pair));
    }
  }
  return runtime.MakeSequence(kType, std::move(items), out);
}

bool CopySelf(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  *out = self;  // values never change, so a copy is the value itself
  return Bind(runtime, "copy", args, {}, nullptr);
}

bool SequenceCount(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {{"value", Parameter::kRequired}};
  Value wanted;
  if (!Bind(runtime, "count", args, kParameters, &wanted)) return false;
  int64_t count = 0;
  for (const Value& item : self.sequence().items) {
    bool equal;
    if (!runtime.Equal(item, wanted, &equal)) return false;
    count += equal ? 1 : 0;
  }
  *out = Value::Int(count);
  return true;
}

bool SequenceIndex(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {{"value", Parameter::kRequired}};
  Value wanted;
  if (!Bind(runtime, "index", args, kParameters, &wanted)) return false;
  const auto& items = self.sequence().items;
  for (size_t i = 0; i < items.size(); ++i) {
    bool equal;
    if (!runtime.Equal(items[i], wanted, &equal)) return false;
    if (!equal) continue;
    *out = Value::Int(static_cast<int64_t>(i));
    return true;
  }
  return runtime.Fail(Format("the value is not in the {}", TypeName(self)));
}

bool LoopCycle(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  if (args.positional.empty()) return runtime.Fail("no items for cycling given");
  *out = args.positional[static_cast<size_t>(self.loop().index0) % args.positional.size()];
  return true;
}

bool LoopChanged(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  LoopObject& loop = self.loop();
  Value now;
  if (!runtime.MakeSequence(SequenceType::kTuple, args.positional, &now)) return false;
  bool same = false;
  if (loop.has_changed && !runtime.Equal(loop.last_changed, now, &same)) return false;
  loop.has_changed = true;
  loop.last_changed = std::move(now);
  *out = Value::Bool(!same);
  return true;
}

constexpr BuiltinEntry kDictMethods[] = {
    {"get", DictGet},
    {"items", DictView<SequenceType::kItems>},
    {"keys", DictView<SequenceType::kKeys>},
    {"values", DictView<SequenceType::kValues>},
    {"copy", CopySelf},
    {"pop", RefuseChange},
    {"popitem", RefuseChange},
    {"setdefault", RefuseChange},
    {"update", RefuseChange},
    {"clear", RefuseChange},
};
constexpr BuiltinEntry kTupleMethods[] = {{"count", SequenceCount}, {"index", SequenceIndex}};
constexpr BuiltinEntry kListMethods[] = {
    {"count", SequenceCount}, {"index", SequenceIndex}, {"copy", CopySelf},
    {"append", RefuseChange}, {"extend", RefuseChange}, {"insert", RefuseChange},
    {"pop", RefuseChange},    {"remove", RefuseChange}, {"reverse", RefuseChange},
    {"sort", RefuseChange},   {"clear", RefuseChange},
};
constexpr BuiltinEntry kLoopMethods[] = {{"cycle", LoopCycle}, {"changed", LoopChanged}};

}  // namespace

Builtin FindMethod(const Value& value, std::string_view name) {
  switch (value.kind()) {
    case Kind::kString: {
      const Builtin found = FindIn(StringMethods(), name);
      return found != nullptr ? found : FindIn(StringSearchMethods(), name);
    }
    case Kind::kDict:
      return FindIn(kDictMethods, name);
    case Kind::kLoop:
      return FindIn(kLoopMethods, name);
    case Kind::kSequence:
      if (value.sequence().type == SequenceType::kList) return FindIn(kListMethods, name);
      if (value.sequence().type <= SequenceType::kRange) return FindIn(kTupleMethods, name);
      return nullptr;
    default:
      return nullptr;
  }
}

Builtin FindFilter(std::string_view name) {
  const Builtin found = FindIn(TextFilters(), name);
  return found != nullptr ? found : FindIn(SequenceFilters(), name);
}

bool Bind(Runtime& runtime, std::string_view function, const CallArgs& args,
          std::span<const Parameter> parameters, Value* values) {
  if (args.positional.size() > parameters.size()) {
    return runtime.Fail(Format("{}() takes at most {} argument(s), {} given", function,
                               parameters.size(), args.positional.size()));
  }
  std::copy(args.positional.begin(), args.positional.end(), values);
  uint32_t given = (uint32_t{1} << args.positional.size()) - 1;
  for (const auto& [name, value] : args.named) {
    size_t i = 0;
    while (i < parameters.size() && parameters[i].name != name) ++i;
    if (i == parameters.size()) {
      return runtime.Fail(Format("{}() has no argument '{}'", function, name));
    }
    if ((given >> i & 1) != 0) {
      return runtime.Fail(Format("{}() got argument '{}' twice", function, name));
    }
    given |= uint32_t{1} << i;
    values[i] = value;
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].need == Parameter::kRequired && (given >> i & 1) == 0) {
      return runtime.Fail(Format("{}() needs argument '{}'", function, parameters[i].name));
    }
  }
  return true;
}

bool ReadInt(Runtime& runtime, std::string_view what, const Value& value, int64_t fallback,
             int64_t* out) {
  if (value.is_undefined() || value.is_none()) {
    *out = fallback;
    return true;
  }
  if (!value.is_integral()) {
    return runtime.Fail(Format("{} must be an integer, not {}", what, TypeName(value)));
  }
  *out = value.integer();
  return true;
}

bool CallByName(Runtime& runtime, Builtin (*find)(std::string_view), std::string_view kind,
                const Value& name, const Value& input, CallArgs& args, Value* out) {
  const Builtin function = name.is_string() ? find(name.str()) : nullptr;
  if (function == nullptr) {
    return runtime.Fail(
        Format("no {} named '{}'", kind, name.is_string() ? name.str() : TypeName(name)));
  }
  CallArgs copy = args;
  return runtime.Charge(1) && function(runtime, input, copy, out);
}

bool GetPath(Runtime& runtime, const Value& value, const Value& path, Value* out,
             const Value& fallback) {
  const auto step = [&](const Value& object, const Value& index, Value* item) {
    if (!runtime.Charge(1) || !GetItem(runtime, object, index, item)) return false;
    if (item->is_undefined() && !fallback.is_undefined() && !fallback.is_none()) *item = fallback;
    return true;
  };
  if (!path.is_string()) return step(value, path, out);
  Value current = value;
  std::string_view rest = path.str();
  while (true) {
    const size_t dot = rest.find('.');
    const std::string_view part = rest.substr(0, dot);
    const bool digits = !part.empty() && part.size() < 18 &&
                        part.find_first_not_of("0123456789") == std::string_view::npos;
    const Value index = digits ? Value::Int(std::stoll(std::string(part)))
                               : Value::String(MarkedText(std::string(part), Trust::kTrusted));
    Value next;
    if (!step(current, index, &next)) return false;
    current = std::move(next);
    if (dot == std::string_view::npos) break;
    rest.remove_prefix(dot + 1);
  }
  *out = std::move(current);
  return true;
}

}  // namespace deepinfer::jinja
