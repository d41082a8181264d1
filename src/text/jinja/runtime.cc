#include "text/jinja/runtime.h"

#include <algorithm>
#include <cstdlib>

#include "base/format.h"
#include "text/jinja/builtins.h"
#include "text/jinja/lexer.h"
#include "text/jinja/operators.h"

namespace deepinfer::jinja {
namespace {

// Nesting of lists and dicts; JSON from outside is at most 128 deep.
constexpr int kNestingMax = 200;
// Values in a container with shared parts written out: what a comparison may visit.
constexpr int64_t kWeightMax = 20'000'000;
constexpr size_t kMemoryPerOutput = 4;
constexpr size_t kMemoryMin = size_t{16} << 20;

// Roles whose names may become part of a special token that the template composes
// ("<|" + role + "|>"); any other text under messages is the user's.
constexpr std::string_view kTrustedRoles[] = {"system",    "developer", "user",
                                              "assistant", "tool",      "function",
                                              "model",     "ipython",   "observation"};

// A builtin function, or a method with its object.
struct FunctionObject : CallableObject {
  Builtin function = nullptr;
  Value self;
  bool Invoke(Runtime& runtime, CallArgs& args, Value* out) override {
    return function(runtime, self, args, out);
  }
};

Value JsonNumber(const Json& json, Trust trust) {
  const std::string& text = json.string();
  if (text.find_first_of(".eE") == std::string::npos) {
    const Result<int64_t> integer = json.AsInt();
    if (integer.ok()) return Value::Int(*integer);
    auto object = std::make_shared<StringObject>();
    object->text = MarkedText(text, trust);
    return {Kind::kBigInt, std::move(object)};
  }
  const Result<double> real = json.AsDouble();
  return Value::Float(real.ok() ? *real : 0.0);
}

}  // namespace

Runtime::Runtime(const Program* program, const ChatTemplateLimits& limits)
    : program_(program),
      limits_(limits),
      nesting_max_(kNestingMax),
      memory_{0, std::max(kMemoryMin, limits.output_bytes_max * kMemoryPerOutput)},
      steps_left_(limits.steps_max),
      scope_(std::make_shared<Scope>(nullptr)) {}

Runtime::~Runtime() {
  for (const auto& scope : captured_) scope->variables.clear();
  for (const auto& ns : namespaces_) ns->attributes.clear();
}

bool Runtime::Define(std::string_view name, const Json& json, Trust trust) {
  const auto& symbols = program_->symbols;
  const auto found = std::find(symbols.begin(), symbols.end(), name);
  if (found == symbols.end()) return true;  // the template never looks at it
  Value value;
  if (!FromJson(json, trust, 0, &value)) return false;
  scope_->Set(static_cast<Symbol>(found - symbols.begin()), std::move(value));
  return true;
}

bool Runtime::DefineMessages(std::string_view name, const Json& json) {
  if (!Define(name, json, Trust::kUntrusted)) return false;
  const auto& symbols = program_->symbols;
  const auto found = std::find(symbols.begin(), symbols.end(), name);
  if (found == symbols.end()) return true;
  const Value* messages = scope_->Find(static_cast<Symbol>(found - symbols.begin()));
  if (messages == nullptr || !messages->is_sequence()) return true;
  for (const Value& message : messages->sequence().items) {
    if (!message.is_dict()) continue;
    const Value* role = message.dict().Find("role");
    if (role == nullptr || !role->is_string()) continue;
    for (std::string_view known : kTrustedRoles) {
      if (role->str() != known) continue;
      *const_cast<Value*>(role) = Value::String(MarkedText(std::string(known), Trust::kTrusted));
      break;
    }
  }
  return true;
}

bool Runtime::Run(MarkedText* out) {
  out_ = out;
  scope_ = std::make_shared<Scope>(std::move(scope_));
  return ExecBody(program_->body) != Flow::kError;
}

bool Runtime::Fail(std::string message) {
  if (error_.ok()) error_ = Invalid(std::move(message));
  return false;
}

bool Runtime::Raise(std::string message) {
  if (error_.ok()) {
    error_ = Invalid(std::move(message));
    located_ = true;
  }
  return false;
}

void Runtime::Locate(const Node& node) {
  if (located_ || error_.ok()) return;
  located_ = true;
  error_ = ErrorAt(program_->source, node.offset, error_.message());
}

bool Runtime::Charge(int64_t steps) {
  if (steps <= steps_left_) {
    steps_left_ -= steps;
    return true;
  }
  steps_left_ = 0;
  return Fail(
      Format("the limit of {} steps is reached; the template loops too long", limits_.steps_max));
}

bool Runtime::CheckSize(size_t bytes) {
  if (bytes <= limits_.output_bytes_max) return true;
  return Fail(Format("a text of more than {} bytes, the limit", limits_.output_bytes_max));
}

bool Runtime::CheckMemory() {
  if (memory_.live <= memory_.live_max) return true;
  return Fail(
      Format("the values of the template hold more than {} bytes, the limit", memory_.live_max));
}

bool Runtime::FinishContainer(const std::shared_ptr<Object>& object, int depth, int64_t weight,
                              size_t bytes) {
  object->depth = depth + 1;
  object->weight = weight;
  object->Count(&memory_, bytes);
  if (object->depth > nesting_max_) {
    return Fail(Format("values nested deeper than {} levels", nesting_max_));
  }
  if (weight > kWeightMax) return Fail(Format("a value of more than {} parts", kWeightMax));
  return CheckMemory();
}

bool Runtime::MakeString(MarkedText text, Value* out) {
  return MakeText(std::move(text), TextKind::kPlain, out);
}

bool Runtime::MakeMarkup(MarkedText text, Value* out) {
  return MakeText(std::move(text), TextKind::kMarkup, out);
}

bool Runtime::MakeText(MarkedText text, TextKind kind, Value* out) {
  if (!CheckSize(text.size()) || !ChargeBytes(text.size())) return false;
  auto object = std::make_shared<StringObject>();
  object->markup = kind == TextKind::kMarkup;
  object->Count(&memory_, sizeof(StringObject) + text.Footprint());
  object->text = std::move(text);
  *out = Value(Kind::kString, std::move(object));
  return CheckMemory();
}

bool Runtime::MakeSequence(SequenceType type, std::vector<Value> items, Value* out) {
  int depth = 0;
  int64_t weight = 1;
  for (const Value& item : items) {
    depth = std::max(depth, item.depth());
    weight = std::min(weight + item.weight(), kWeightMax + 1);
  }
  if (!Charge(1 + static_cast<int64_t>(items.size() / 4))) return false;
  auto object = std::make_shared<SequenceObject>();
  object->type = type;
  const size_t bytes = sizeof(SequenceObject) + items.size() * sizeof(Value);
  object->items = std::move(items);
  if (!FinishContainer(object, depth, weight, bytes)) return false;
  *out = Value(Kind::kSequence, std::move(object));
  return true;
}

bool Runtime::MakeRange(int64_t start, int64_t stop, int64_t step, Value* out) {
  constexpr uint64_t kRangeMax = 100'000;  // as Jinja2's sandbox
  uint64_t count = 0;
  if (step > 0 && stop > start) {
    count = (static_cast<uint64_t>(stop) - static_cast<uint64_t>(start) - 1) /
                static_cast<uint64_t>(step) +
            1;
  } else if (step < 0 && stop < start) {
    count = (static_cast<uint64_t>(start) - static_cast<uint64_t>(stop) - 1) /
                (0 - static_cast<uint64_t>(step)) +
            1;
  }
  if (count > kRangeMax) {
    return Fail(Format("range() of {} items is more than the limit of {}", count, kRangeMax));
  }
  std::vector<Value> items;
  items.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    items.push_back(Value::Int(
        static_cast<int64_t>(static_cast<uint64_t>(start) + i * static_cast<uint64_t>(step))));
  }
  if (!MakeSequence(SequenceType::kRange, std::move(items), out)) return false;
  out->sequence().start = start;
  out->sequence().stop = stop;
  out->sequence().step = step;
  return true;
}

bool Runtime::MakeDict(std::shared_ptr<DictObject> dict, Value* out) {
  int depth = 0;
  int64_t weight = 1;
  for (const auto& [key, value] : dict->entries) {
    depth = std::max({depth, key.depth(), value.depth()});
    weight = std::min(weight + key.weight() + value.weight(), kWeightMax + 1);
  }
  if (!Charge(1 + static_cast<int64_t>(dict->entries.size()))) return false;
  const size_t bytes = sizeof(DictObject) + dict->entries.size() * 3 * sizeof(Value);
  if (!FinishContainer(dict, depth, weight, bytes)) return false;
  *out = Value(Kind::kDict, std::move(dict));
  return true;
}

bool Runtime::MakeNamespace(std::vector<std::pair<std::string, Value>> attributes, Value* out) {
  auto object = std::make_shared<NamespaceObject>();
  object->attributes = std::move(attributes);
  object->Count(&memory_, sizeof(NamespaceObject) + 64 + object->attributes.size() * 128);
  namespaces_.push_back(object);
  *out = Value(Kind::kNamespace, std::move(object));
  return CheckMemory();
}

bool Runtime::MakeFunction(std::string name, Builtin function, Value self, Value* out) {
  auto object = std::make_shared<FunctionObject>();
  object->name = std::move(name);
  object->function = function;
  const int depth = self.depth();
  object->self = std::move(self);
  if (!FinishContainer(object, depth, 1, sizeof(FunctionObject))) return false;
  *out = Value(Kind::kCallable, std::move(object));
  return true;
}

bool Runtime::MakeCallable(std::shared_ptr<CallableObject> callable, Value* out) {
  callable->Count(&memory_, 256);
  if (callable->depth > nesting_max_) return Fail("values are nested too deep");
  *out = Value(Kind::kCallable, std::move(callable));
  return CheckMemory();
}

bool Runtime::Equal(const Value& a, const Value& b, bool* equal) {
  if (!Charge(std::min(a.weight(), b.weight()))) return false;
  *equal = Equals(a, b);
  return true;
}

bool Runtime::Call(const Value& callee, CallArgs& args, Value* out) {
  if (callee.kind() == Kind::kCallable) return callee.callable().Invoke(*this, args, out);
  if (callee.kind() == Kind::kLoop) return CallLoop(callee.loop(), args, out);
  if (callee.is_undefined()) return Fail(std::string(callee.why()));
  return Fail(Format("'{}' object is not callable", TypeName(callee)));
}

bool Runtime::FromJson(const Json& json, Trust trust, int depth, Value* out) {
  if (depth > nesting_max_) {
    return Fail(Format("variables nested deeper than {} levels", nesting_max_));
  }
  if (!ChargeBytes(json.string().size())) return false;
  switch (json.kind()) {
    case Json::Kind::kNull:
      *out = Value::None();
      return true;
    case Json::Kind::kBool:
      *out = Value::Bool(json.AsBool().value());
      return true;
    case Json::Kind::kNumber:
      *out = JsonNumber(json, trust);
      return true;
    case Json::Kind::kString:
      *out = Value::String(MarkedText(json.string(), trust));
      return true;
    case Json::Kind::kArray:
      return JsonItems(json, trust, depth, out);
    case Json::Kind::kObject:
      return JsonMembers(json, trust, depth, out);
  }
  return true;
}

bool Runtime::JsonItems(const Json& json, Trust trust, int depth, Value* out) {
  auto list = std::make_shared<SequenceObject>();
  list->items.resize(json.items().size());
  for (size_t i = 0; i < list->items.size(); ++i) {
    if (!FromJson(json.items()[i], trust, depth + 1, &list->items[i])) return false;
    list->depth = std::max(list->depth, list->items[i].depth() + 1);
    list->weight = std::min(list->weight + list->items[i].weight(), kWeightMax);
  }
  *out = Value(Kind::kSequence, std::move(list));
  return true;
}

bool Runtime::JsonMembers(const Json& json, Trust trust, int depth, Value* out) {
  auto dict = std::make_shared<DictObject>();
  dict->entries.reserve(json.members().size());
  for (const Json::Member& member : json.members()) {
    Value value;
    if (!FromJson(member.second, trust, depth + 1, &value)) return false;
    dict->depth = std::max(dict->depth, value.depth() + 1);
    dict->weight = std::min(dict->weight + 1 + value.weight(), kWeightMax);
    dict->Set(Value::String(MarkedText(member.first, trust)), std::move(value));
  }
  *out = Value(Kind::kDict, std::move(dict));
  return true;
}

}  // namespace deepinfer::jinja
