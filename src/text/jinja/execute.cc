#include <algorithm>

#include "base/format.h"
#include "text/jinja/operators.h"
#include "text/jinja/runtime.h"
#include "text/jinja/value_text.h"

namespace deepinfer::jinja {
namespace {

struct MacroObject : CallableObject {
  const MacroStmt* macro = nullptr;
  std::shared_ptr<Scope> scope;  // where it was defined; shared with the Runtime
  bool Invoke(Runtime& runtime, CallArgs& args, Value* out) override {
    return runtime.CallMacro(*macro, scope, args, out);
  }
  bool Attribute(std::string_view attribute, Value* out) override {
    if (attribute != "name") return false;
    *out = Value::String(MarkedText(name, Trust::kTrusted));
    return true;
  }
};

}  // namespace

Runtime::Flow Runtime::ExecBody(const Body& body) {
  for (const NodePtr& node : body) {
    const Flow flow = Exec(*node);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Runtime::Flow Runtime::Exec(const Node& node) {
  Flow flow = Flow::kError;
  if (++recursion_ > kRecursionMax) {
    Fail("expressions and blocks are nested too deep");
  } else if (Charge(1)) {
    flow = ExecKind(node);
  }
  --recursion_;
  if (flow == Flow::kError) Locate(node);
  return flow;
}

Runtime::Flow Runtime::ExecKind(const Node& node) {
  const auto from = [](bool ok) { return ok ? Flow::kNext : Flow::kError; };
  switch (node.kind) {
    case NodeKind::kData:
      return from(Write(static_cast<const DataStmt&>(node).text, Trust::kTrusted));
    case NodeKind::kOutput: {
      Value value;
      if (!Eval(*static_cast<const OutputStmt&>(node).value, &value)) return Flow::kError;
      if (value.is_string()) return from(Write(value.text()));
      MarkedText text;
      return from(AppendStr(*this, value, &text) && Write(text));
    }
    case NodeKind::kIf:
      return ExecIf(static_cast<const IfStmt&>(node));
    case NodeKind::kFor:
      return ExecFor(static_cast<const ForStmt&>(node));
    case NodeKind::kSet:
      return from(ExecSet(static_cast<const SetStmt&>(node)));
    case NodeKind::kSetBlock:
      return ExecSetBlock(static_cast<const SetBlockStmt&>(node));
    case NodeKind::kMacro: {
      const auto& macro = static_cast<const MacroStmt&>(node);
      auto object = std::make_shared<MacroObject>();
      object->name = macro.name;
      object->macro = &macro;
      object->scope = scope_;
      Capture(scope_);
      Value value;
      if (!MakeCallable(std::move(object), &value)) return Flow::kError;
      scope_->Set(macro.symbol, std::move(value));
      return Flow::kNext;
    }
    case NodeKind::kCallBlock:
      return from(ExecCallBlock(static_cast<const CallBlockStmt&>(node)));
    case NodeKind::kFilterBlock:
      return ExecFilterBlock(static_cast<const FilterBlockStmt&>(node));
    case NodeKind::kWith:
    case NodeKind::kScope:
      return ExecScoped(static_cast<const WithStmt&>(node));
    case NodeKind::kBreak:
      return Flow::kBreak;
    case NodeKind::kContinue:
      return Flow::kContinue;
    default:
      return from(Fail("this is not a statement"));
  }
}

bool Runtime::Write(std::string_view text, Trust trust) {
  if (text.size() > limits_.output_bytes_max - out_->size()) {
    return CheckSize(limits_.output_bytes_max + 1);
  }
  if (captures_ > 0) memory_.live += text.size();
  out_->Append(text, trust);
  return ChargeBytes(text.size()) && CheckMemory();
}

bool Runtime::Write(const MarkedText& text) {
  if (text.size() > limits_.output_bytes_max - out_->size()) {
    return CheckSize(limits_.output_bytes_max + 1);
  }
  if (captures_ > 0) memory_.live += text.size();
  out_->Append(text);
  return ChargeBytes(text.size()) && CheckMemory();
}

void Runtime::BeginCapture(Capturing* capture) {
  capture->outer = out_;
  out_ = &capture->text;
  ++captures_;
}

bool Runtime::EndCapture(Capturing* capture, Value* out) {
  --captures_;
  memory_.live -= capture->text.size();
  out_ = capture->outer;
  return out == nullptr || MakeString(std::move(capture->text), out);
}

Runtime::Flow Runtime::ExecIf(const IfStmt& node) {
  for (const auto& [condition, body] : node.branches) {
    Value value;
    if (!Eval(*condition, &value)) return Flow::kError;
    if (Truthy(value)) return ExecBody(body);
  }
  return ExecBody(node.otherwise);
}

Runtime::Flow Runtime::ExecFor(const ForStmt& node) {
  Value iterable, sequence;
  if (!Eval(*node.iterable, &iterable) || !Iterate(*this, iterable, &sequence)) {
    return Flow::kError;
  }
  return RunLoop(node, std::move(sequence), 0);
}

bool Runtime::FilterItems(const ForStmt& node, Value* sequence) {
  std::vector<Value> kept;
  const std::shared_ptr<Scope> outer = scope_;
  bool ok = true;
  for (const Value& item : sequence->sequence().items) {
    scope_ = std::make_shared<Scope>(outer);
    Value condition;
    ok = Charge(1) && Assign(*node.target, item) && Eval(*node.filter, &condition);
    if (!ok) break;
    if (Truthy(condition)) kept.push_back(item);
  }
  scope_ = outer;
  return ok && MakeSequence(SequenceType::kList, std::move(kept), sequence);
}

Runtime::Flow Runtime::RunLoop(const ForStmt& node, Value sequence, int depth0) {
  if (node.filter != nullptr && !FilterItems(node, &sequence)) return Flow::kError;
  const std::shared_ptr<Scope> outer = scope_;
  const size_t count = sequence.sequence().items.size();
  if (count == 0) {
    scope_ = std::make_shared<Scope>(outer);
    const Flow flow = ExecBody(node.otherwise);
    scope_ = outer;
    return flow;
  }
  auto loop = std::make_shared<LoopObject>();
  loop->depth = sequence.depth() + 1;
  loop->weight = sequence.weight();
  loop->sequence = sequence;
  loop->depth0 = depth0;
  loop->statement = &node;
  if (node.recursive) {
    loop->scope = outer;
    Capture(outer);
  }
  const Value loop_value(Kind::kLoop, loop);
  Flow flow = Flow::kNext;
  std::shared_ptr<Scope> scope;
  for (size_t i = 0; i < count; ++i) {
    if (scope == nullptr || scope.use_count() > 2 || scope->captured) {
      scope = std::make_shared<Scope>(outer);
    } else {
      scope->variables.clear();
    }
    scope_ = scope;
    loop->index0 = static_cast<int64_t>(i);
    scope->Set(kSymbolLoop, loop_value);
    const bool bound = Charge(1) && Assign(*node.target, sequence.sequence().items[i]);
    flow = bound ? ExecBody(node.body) : Flow::kError;
    if (flow == Flow::kError || flow == Flow::kBreak) break;
  }
  scope_ = outer;
  return flow == Flow::kError ? flow : Flow::kNext;
}

bool Runtime::CallLoop(LoopObject& loop, CallArgs& args, Value* out) {
  if (!loop.statement->recursive) {
    return Fail("the loop must have the 'recursive' marker to be called");
  }
  if (args.positional.size() != 1 || !args.named.empty()) {
    return Fail("loop() takes one argument: what to iterate over");
  }
  if (++calls_ > limits_.depth_max) {
    --calls_;
    return Fail(Format("more than {} nested calls", limits_.depth_max));
  }
  Value sequence;
  bool ok = Iterate(*this, args.positional[0], &sequence);
  if (ok) {
    const std::shared_ptr<Scope> caller = std::exchange(scope_, loop.scope);
    Capturing capture;
    BeginCapture(&capture);
    ok = RunLoop(*loop.statement, std::move(sequence), loop.depth0 + 1) != Flow::kError;
    ok = EndCapture(&capture, ok ? out : nullptr) && ok;
    scope_ = caller;
  }
  --calls_;
  return ok;
}

bool Runtime::Unpack(const GroupExpr& target, const Value& value) {
  Value sequence;
  if (!Iterate(*this, value, &sequence)) return false;
  const auto& items = sequence.sequence().items;
  if (items.size() != target.items.size()) {
    return Fail(Format("cannot unpack {} values into {} names", items.size(), target.items.size()));
  }
  for (size_t i = 0; i < items.size(); ++i) {
    if (!Assign(*target.items[i], items[i])) return false;
  }
  return true;
}

bool Runtime::Assign(const Node& target, Value value) {
  if (target.kind == NodeKind::kName) {
    scope_->Set(static_cast<const NameExpr&>(target).symbol, std::move(value));
    return true;
  }
  if (target.kind == NodeKind::kTuple) {
    return Unpack(static_cast<const GroupExpr&>(target), value);
  }
  const auto& attribute = static_cast<const NamespaceTarget&>(target);
  const Value* ns = scope_->Find(attribute.symbol);
  if (ns == nullptr || ns->kind() != Kind::kNamespace) {
    return Fail(Format("cannot set '{}.{}': '{}' is not a namespace", attribute.name,
                       attribute.attribute, attribute.name));
  }
  NamespaceObject& object = ns->ns();
  for (auto& [name, old] : object.attributes) {
    if (name == attribute.attribute) {
      old = std::move(value);
      return true;
    }
  }
  object.attributes.emplace_back(attribute.attribute, std::move(value));
  return true;
}

bool Runtime::ExecSet(const SetStmt& node) {
  Value value;
  return Eval(*node.value, &value) && Assign(*node.target, std::move(value));
}

Runtime::Flow Runtime::ExecSetBlock(const SetBlockStmt& node) {
  const std::shared_ptr<Scope> outer = scope_;
  scope_ = std::make_shared<Scope>(outer);
  Capturing capture;
  BeginCapture(&capture);
  const Flow flow = ExecBody(node.body);
  Value text;
  bool ok = EndCapture(&capture, flow == Flow::kError ? nullptr : &text);
  scope_ = outer;
  if (flow != Flow::kNext) return flow;
  if (ok && node.filter != nullptr) ok = EvalFilters(*node.filter, Value(text), &text);
  return ok && Assign(*node.target, std::move(text)) ? Flow::kNext : Flow::kError;
}

Runtime::Flow Runtime::ExecFilterBlock(const FilterBlockStmt& node) {
  const std::shared_ptr<Scope> outer = scope_;
  scope_ = std::make_shared<Scope>(outer);
  Capturing capture;
  BeginCapture(&capture);
  const Flow flow = ExecBody(node.body);
  Value text;
  bool ok = EndCapture(&capture, flow == Flow::kError ? nullptr : &text);
  scope_ = outer;
  if (flow != Flow::kNext) return flow;
  MarkedText result;
  ok = ok && EvalFilters(*node.filter, Value(text), &text) && AppendStr(*this, text, &result) &&
       Write(result);
  return ok ? Flow::kNext : Flow::kError;
}

Runtime::Flow Runtime::ExecScoped(const WithStmt& node) {
  // Values are computed outside the new scope, as in Jinja2.
  std::vector<Value> values(node.variables.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (!Eval(*node.variables[i].second, &values[i])) return Flow::kError;
  }
  const std::shared_ptr<Scope> outer = scope_;
  scope_ = std::make_shared<Scope>(outer);
  Flow flow = Flow::kNext;
  for (size_t i = 0; i < values.size() && flow == Flow::kNext; ++i) {
    if (!Assign(*node.variables[i].first, std::move(values[i]))) flow = Flow::kError;
  }
  if (flow == Flow::kNext) flow = ExecBody(node.body);
  scope_ = outer;
  return flow;
}

void Runtime::Capture(const std::shared_ptr<Scope>& scope) {
  for (std::shared_ptr<Scope> s = scope; s != nullptr && !s->captured; s = s->parent) {
    s->captured = true;
    captured_.push_back(s);
  }
}

bool Runtime::ExecCallBlock(const CallBlockStmt& node) {
  auto object = std::make_shared<MacroObject>();
  object->name = "caller";
  object->macro = node.caller.get();
  object->scope = scope_;
  Capture(scope_);
  CallArgs args;
  args.named.emplace_back("caller", Value());
  Value result;
  MarkedText text;
  if (!MakeCallable(std::move(object), &args.named[0].second)) return false;
  return EvalCall(*node.call, std::move(args), &result) && AppendStr(*this, result, &text) &&
         Write(text);
}

// Binds the arguments of a call to the macro's parameters in scope_.
bool Runtime::BindMacro(const MacroStmt& macro, CallArgs& args) {
  bool has_caller_parameter = false;
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    const MacroStmt::Parameter& parameter = macro.parameters[i];
    has_caller_parameter |= parameter.symbol == kSymbolCaller;
    if (i < args.positional.size()) {
      scope_->Set(parameter.symbol, args.positional[i]);
      continue;
    }
    const auto named = std::find_if(args.named.begin(), args.named.end(), [&](const auto& entry) {
      return entry.first == parameter.name;
    });
    if (named != args.named.end()) {
      scope_->Set(parameter.symbol, std::move(named->second));
      args.named.erase(named);
      continue;
    }
    Value value = Value::Undefined(Format("parameter '{}' was not provided", parameter.name));
    if (parameter.fallback != nullptr && !Eval(*parameter.fallback, &value)) return false;
    scope_->Set(parameter.symbol, std::move(value));
  }
  if (macro.uses_caller && !has_caller_parameter) {
    const auto named = std::find_if(args.named.begin(), args.named.end(),
                                    [](const auto& entry) { return entry.first == "caller"; });
    Value caller = Value::Undefined("No caller defined");
    if (named != args.named.end()) {
      caller = std::move(named->second);
      args.named.erase(named);
    }
    scope_->Set(kSymbolCaller, std::move(caller));
  }
  if (macro.uses_kwargs) {
    auto dict = std::make_shared<DictObject>();
    for (auto& [name, value] : args.named) {
      dict->Set(Value::String(MarkedText(name, Trust::kTrusted)), std::move(value));
    }
    Value value;
    if (!MakeDict(std::move(dict), &value)) return false;
    scope_->Set(kSymbolKwargs, std::move(value));
  } else if (!args.named.empty()) {
    return Fail(
        Format("macro '{}' takes no keyword argument '{}'", macro.name, args.named[0].first));
  }
  const size_t extra = std::min(args.positional.size(), macro.parameters.size());
  if (macro.uses_varargs) {
    Value value;
    std::vector<Value> rest(args.positional.begin() + static_cast<ptrdiff_t>(extra),
                            args.positional.end());
    if (!MakeSequence(SequenceType::kTuple, std::move(rest), &value)) return false;
    scope_->Set(kSymbolVarargs, std::move(value));
  } else if (args.positional.size() > macro.parameters.size()) {
    return Fail(Format("macro '{}' takes not more than {} argument(s)", macro.name,
                       macro.parameters.size()));
  }
  return true;
}

bool Runtime::CallMacro(const MacroStmt& macro, const std::shared_ptr<Scope>& scope, CallArgs& args,
                        Value* out) {
  if (++calls_ > limits_.depth_max) {
    --calls_;
    return Fail(Format("more than {} nested calls", limits_.depth_max));
  }
  const std::shared_ptr<Scope> caller = std::exchange(scope_, std::make_shared<Scope>(scope));
  Capturing capture;
  BeginCapture(&capture);
  const bool ok = BindMacro(macro, args) && ExecBody(macro.body) != Flow::kError;
  const bool ended = EndCapture(&capture, ok ? out : nullptr);
  scope_ = caller;
  --calls_;
  return ok && ended;
}

}  // namespace deepinfer::jinja
