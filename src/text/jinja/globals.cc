// The global functions: range, namespace, dict, raise_exception, strftime_now, joiner, cycler.
#include <algorithm>
#include <chrono>
#include <ctime>

#include "base/format.h"
#include "text/jinja/builtins.h"
#include "text/jinja/operators.h"
#include "text/jinja/value_text.h"

namespace deepinfer::jinja {
namespace {

bool GlobalRange(Runtime& runtime, const Value&, CallArgs& args, Value* out) {
  if (args.positional.empty() || args.positional.size() > 3 || !args.named.empty()) {
    return runtime.Fail("range() takes one to three positional arguments");
  }
  int64_t bounds[3] = {0, 0, 1};
  for (size_t i = 0; i < args.positional.size(); ++i) {
    const Value& value = args.positional[i];
    if (value.is_undefined()) return runtime.Fail(std::string(value.why()));
    if (!value.is_integral()) {
      return runtime.Fail(
          Format("'{}' object cannot be interpreted as an integer", TypeName(value)));
    }
    bounds[i] = value.integer();
  }
  if (bounds[2] == 0) return runtime.Fail("range() step must not be zero");
  if (args.positional.size() == 1) return runtime.MakeRange(0, bounds[0], 1, out);
  return runtime.MakeRange(bounds[0], bounds[1], bounds[2], out);
}

// dict(pairs or dict, **named) as entries.
bool DictFromArgs(Runtime& runtime, CallArgs& args, std::shared_ptr<DictObject>* out) {
  auto dict = std::make_shared<DictObject>();
  if (args.positional.size() > 1) return runtime.Fail("expected at most one positional argument");
  if (!args.positional.empty() && args.positional[0].is_dict()) {
    for (const auto& [key, value] : args.positional[0].dict().entries) dict->Set(key, value);
  } else if (!args.positional.empty()) {
    Value pairs;
    if (!Iterate(runtime, args.positional[0], &pairs)) return false;
    for (const Value& entry : pairs.sequence().items) {
      Value pair;
      if (!Iterate(runtime, entry, &pair)) return false;
      const auto& items = pair.sequence().items;
      if (items.size() != 2) return runtime.Fail("dict() needs pairs of key and value");
      if (!IsHashable(items[0])) {
        return runtime.Fail(Format("unhashable type: '{}'", TypeName(items[0])));
      }
      if (!runtime.Charge(items[0].weight())) return false;
      dict->Set(items[0], items[1]);
    }
  }
  for (auto& [name, value] : args.named) {
    dict->Set(Value::String(MarkedText(name, Trust::kTrusted)), std::move(value));
  }
  *out = std::move(dict);
  return true;
}

bool GlobalDict(Runtime& runtime, const Value&, CallArgs& args, Value* out) {
  std::shared_ptr<DictObject> dict;
  return DictFromArgs(runtime, args, &dict) && runtime.MakeDict(std::move(dict), out);
}

bool GlobalNamespace(Runtime& runtime, const Value&, CallArgs& args, Value* out) {
  std::shared_ptr<DictObject> dict;
  if (!DictFromArgs(runtime, args, &dict)) return false;
  std::vector<std::pair<std::string, Value>> attributes;
  for (auto& [key, value] : dict->entries) {
    if (!key.is_string()) return runtime.Fail("names of a namespace must be strings");
    attributes.emplace_back(std::string(key.str()), std::move(value));
  }
  return runtime.MakeNamespace(std::move(attributes), out);
}

bool GlobalRaise(Runtime& runtime, const Value&, CallArgs& args, Value*) {
  constexpr Parameter kParameters[] = {{"message", Parameter::kRequired}};
  Value message;
  MarkedText text;
  if (!Bind(runtime, "raise_exception", args, kParameters, &message) ||
      !AppendStr(runtime, message, &text)) {
    return false;
  }
  return runtime.Raise(std::move(text).TakeBytes());
}

// One conversion of strftime on a naive local time, as Python's datetime does it.
std::string FormatTime(std::string_view conversion, const std::tm& time, int64_t micros) {
  const char kind = conversion.back();
  if (kind == 'f') return Format("{:06}", micros);
  if (kind == 'z' || kind == 'Z') return "";
  char buffer[128];
  const size_t size = std::strftime(buffer, sizeof buffer, std::string(conversion).c_str(), &time);
  return std::string(buffer, size);
}

bool GlobalStrftimeNow(Runtime& runtime, const Value&, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {{"format", Parameter::kRequired}};
  Value format;
  if (!Bind(runtime, "strftime_now", args, kParameters, &format)) return false;
  if (!format.is_string() || format.text().size() > 256) {
    return runtime.Fail("strftime_now() needs a format of at most 256 bytes");
  }
  const auto now = std::chrono::system_clock::now();
  const auto micros =
      std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count();
  const std::time_t seconds = static_cast<std::time_t>(micros / 1'000'000);
  std::tm time{};
  localtime_r(&seconds, &time);
  const std::string_view pattern = format.str();
  std::string text;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%' || i + 1 == pattern.size()) {
      text.push_back(pattern[i]);
      continue;
    }
    size_t end = i + 1;  // flags of glibc, one of them at most
    if (std::string_view("-_0^#").find(pattern[end]) != std::string_view::npos &&
        end + 1 < pattern.size()) {
      ++end;
    }
    constexpr std::string_view kConversions = "aAbBcCdDeFfgGhHIjklmMnprRsStTuUVwWxXyYzZ%";
    if (kConversions.find(pattern[end]) == std::string_view::npos) {
      text.append(pattern.substr(i, end + 1 - i));
    } else {
      text += FormatTime(pattern.substr(i, end + 1 - i), time, micros % 1'000'000);
    }
    i = end;
  }
  return runtime.MakeString(MarkedText(std::move(text), Trust::kTrusted), out);
}

// Gives its separator on every call but the first.
struct JoinerObject : CallableObject {
  Value separator;
  bool used = false;
  bool Invoke(Runtime& runtime, CallArgs& args, Value* out) override {
    if (!Bind(runtime, "joiner", args, {}, nullptr)) return false;
    if (std::exchange(used, true)) {
      *out = separator;
      return true;
    }
    return runtime.MakeString({}, out);
  }
};

bool GlobalJoiner(Runtime& runtime, const Value&, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {{"sep"}};
  Value separator;
  if (!Bind(runtime, "joiner", args, kParameters, &separator)) return false;
  if (separator.is_undefined() &&
      !runtime.MakeString(MarkedText(", ", Trust::kTrusted), &separator)) {
    return false;
  }
  auto object = std::make_shared<JoinerObject>();
  object->name = "joiner";
  object->separator = std::move(separator);
  object->depth = object->separator.depth() + 1;
  return runtime.MakeCallable(std::move(object), out);
}

struct CyclerState : Object {
  std::vector<Value> items;
  size_t at = 0;
};

// cycler.next() and cycler.reset(); `self` of the method is the cycler's position.
struct CyclerMethod : CallableObject {
  std::shared_ptr<CyclerState> state;  // shared by the methods of one cycler
  bool reset = false;
  bool Invoke(Runtime& runtime, CallArgs& args, Value* out) override {
    if (!Bind(runtime, name, args, {}, nullptr)) return false;
    if (reset) {
      state->at = 0;
      *out = Value::None();
      return true;
    }
    *out = state->items[state->at];
    state->at = (state->at + 1) % state->items.size();
    return true;
  }
};

struct CyclerObject : CallableObject {
  std::shared_ptr<CyclerState> state;  // shared by the methods of one cycler
  bool Invoke(Runtime& runtime, CallArgs&, Value*) override {
    return runtime.Fail("a cycler is not callable; use cycler.next()");
  }
  bool Attribute(std::string_view attribute, Value* out) override {
    if (attribute == "current") {
      *out = state->items[state->at];
      return true;
    }
    if (attribute != "next" && attribute != "reset") return false;
    auto method = std::make_shared<CyclerMethod>();
    method->name = std::string(attribute);
    method->state = state;
    method->reset = attribute == "reset";
    method->depth = depth;
    *out = Value(Kind::kCallable, std::move(method));
    return true;
  }
};

bool GlobalCycler(Runtime& runtime, const Value&, CallArgs& args, Value* out) {
  if (args.positional.empty() || !args.named.empty()) {
    return runtime.Fail("cycler() needs at least one item");
  }
  auto object = std::make_shared<CyclerObject>();
  object->name = "cycler";
  object->state = std::make_shared<CyclerState>();
  for (const Value& item : args.positional) {
    object->depth = std::max(object->depth, item.depth() + 1);
  }
  object->state->items = std::move(args.positional);
  return runtime.MakeCallable(std::move(object), out);
}

constexpr BuiltinEntry kGlobals[] = {
    {"range", GlobalRange},
    {"dict", GlobalDict},
    {"namespace", GlobalNamespace},
    {"raise_exception", GlobalRaise},
    {"strftime_now", GlobalStrftimeNow},
    {"joiner", GlobalJoiner},
    {"cycler", GlobalCycler},
};

}  // namespace

Builtin FindGlobal(std::string_view name) {
  for (const BuiltinEntry& entry : kGlobals) {
    if (entry.name == name) return entry.function;
  }
  return nullptr;
}

}  // namespace deepinfer::jinja
