#include "base/format.h"
#include "text/jinja/builtins.h"
#include "text/jinja/operators.h"
#include "text/jinja/runtime.h"
#include "text/jinja/value_text.h"

namespace deepinfer::jinja {
namespace {

Value UndefinedName(const std::string& name) {
  return Value::Undefined(Format("'{}' is undefined", name));
}

}  // namespace

bool Runtime::Eval(const Node& node, Value* out) {
  if (++recursion_ > kRecursionMax) {
    --recursion_;
    Fail("expressions and blocks are nested too deep");
    Locate(node);
    return false;
  }
  const bool ok = Charge(1) && EvalKind(node, out);
  --recursion_;
  if (!ok) Locate(node);
  return ok;
}

bool Runtime::EvalKind(const Node& node, Value* out) {
  switch (node.kind) {
    case NodeKind::kConst:
      *out = static_cast<const ConstExpr&>(node).value;
      return true;
    case NodeKind::kName:
      return EvalName(static_cast<const NameExpr&>(node), out);
    case NodeKind::kList:
    case NodeKind::kTuple: {
      std::vector<Value> items;
      if (!EvalItems(static_cast<const GroupExpr&>(node).items, &items)) return false;
      return MakeSequence(node.kind == NodeKind::kList ? SequenceType::kList : SequenceType::kTuple,
                          std::move(items), out);
    }
    case NodeKind::kDict:
      return EvalDict(static_cast<const DictExpr&>(node), out);
    case NodeKind::kNot:
    case NodeKind::kNegate:
    case NodeKind::kPositive: {
      Value operand;
      if (!Eval(*static_cast<const GroupExpr&>(node).items[0], &operand)) return false;
      if (node.kind == NodeKind::kNegate) return Negate(*this, operand, out);
      if (node.kind == NodeKind::kNot) {
        *out = Value::Bool(!Truthy(operand));
        return true;
      }
      return Apply(*this, BinaryOp::kAdd, Value::Int(0), operand, out);
    }
    case NodeKind::kBinary:
      return EvalBinary(static_cast<const BinaryExpr&>(node), out);
    case NodeKind::kAnd:
    case NodeKind::kOr:
      return EvalLogical(static_cast<const GroupExpr&>(node), out);
    case NodeKind::kCompare:
      return EvalCompare(static_cast<const CompareExpr&>(node), out);
    case NodeKind::kConcat:
      return EvalConcat(static_cast<const GroupExpr&>(node), out);
    case NodeKind::kConditional:
      return EvalConditional(static_cast<const ConditionalExpr&>(node), out);
    case NodeKind::kAttribute: {
      const auto& attribute = static_cast<const AttributeExpr&>(node);
      Value object;
      return Eval(*attribute.object, &object) && GetAttribute(*this, object, attribute.name, out);
    }
    case NodeKind::kItem:
      return EvalItem(static_cast<const ItemExpr&>(node), out);
    case NodeKind::kCall:
      return EvalCall(static_cast<const CallExpr&>(node), {}, out);
    case NodeKind::kFilter:
    case NodeKind::kTest:
      return EvalApply(static_cast<const ApplyExpr&>(node), out);
    default:
      return Fail("this is not an expression");
  }
}

bool Runtime::EvalName(const NameExpr& node, Value* out) {
  if (const Value* found = scope_->Find(node.symbol)) {
    *out = *found;
    return true;
  }
  if (const Builtin function = FindGlobal(node.name)) {
    return MakeFunction(node.name, function, Value(), out);
  }
  *out = UndefinedName(node.name);
  return true;
}

bool Runtime::EvalItems(const Body& nodes, std::vector<Value>* out) {
  out->resize(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (!Eval(*nodes[i], &(*out)[i])) return false;
  }
  return true;
}

bool Runtime::EvalDict(const DictExpr& node, Value* out) {
  auto dict = std::make_shared<DictObject>();
  for (const auto& [key_node, value_node] : node.entries) {
    Value key, value;
    if (!Eval(*key_node, &key) || !Eval(*value_node, &value)) return false;
    if (!IsHashable(key)) return Fail(Format("unhashable type: '{}'", TypeName(key)));
    if (!Charge(key.weight())) return false;
    dict->Set(std::move(key), std::move(value));
  }
  return MakeDict(std::move(dict), out);
}

bool Runtime::EvalBinary(const BinaryExpr& node, Value* out) {
  // A chain a + b + c leans left: walk it in a loop.
  std::vector<const BinaryExpr*> chain{&node};
  while (chain.back()->left->kind == NodeKind::kBinary) {
    chain.push_back(static_cast<const BinaryExpr*>(chain.back()->left.get()));
  }
  Value left;
  if (!Eval(*chain.back()->left, &left)) return false;
  for (auto link = chain.rbegin(); link != chain.rend(); ++link) {
    Value right, result;
    if (!Eval(*(*link)->right, &right)) return false;
    if (!Apply(*this, (*link)->op, left, right, &result)) {
      Locate(**link);
      return false;
    }
    left = std::move(result);
  }
  *out = std::move(left);
  return true;
}

bool Runtime::EvalLogical(const GroupExpr& node, Value* out) {
  const bool stop_at = node.kind == NodeKind::kOr;
  for (const NodePtr& item : node.items) {
    if (!Eval(*item, out)) return false;
    if (Truthy(*out) == stop_at) return true;
  }
  return true;
}

bool Runtime::EvalCompare(const CompareExpr& node, Value* out) {
  Value left;
  if (!Eval(*node.first, &left)) return false;
  bool holds = true;
  for (const auto& [op, operand] : node.rest) {
    Value right;
    if (!Eval(*operand, &right) || !Compare(*this, op, left, right, &holds)) return false;
    if (!holds) break;
    left = std::move(right);
  }
  *out = Value::Bool(holds);
  return true;
}

bool Runtime::EvalConcat(const GroupExpr& node, Value* out) {
  MarkedText text;
  for (const NodePtr& item : node.items) {
    Value value;
    if (!Eval(*item, &value) || !AppendStr(*this, value, &text)) return false;
  }
  return MakeString(std::move(text), out);
}

bool Runtime::EvalConditional(const ConditionalExpr& node, Value* out) {
  Value condition;
  if (!Eval(*node.condition, &condition)) return false;
  if (Truthy(condition)) return Eval(*node.then, out);
  if (node.otherwise != nullptr) return Eval(*node.otherwise, out);
  *out = Value::Undefined("the condition of an inline if without else was false");
  return true;
}

bool Runtime::EvalItem(const ItemExpr& node, Value* out) {
  Value object;
  if (!Eval(*node.object, &object)) return false;
  if (node.index->kind != NodeKind::kSlice) {
    Value index;
    return Eval(*node.index, &index) && GetItem(*this, object, index, out);
  }
  const auto& slice = static_cast<const SliceExpr&>(*node.index);
  Value parts[3] = {Value::None(), Value::None(), Value::None()};
  const NodePtr* nodes[3] = {&slice.start, &slice.stop, &slice.step};
  for (int i = 0; i < 3; ++i) {
    if (*nodes[i] != nullptr && !Eval(**nodes[i], &parts[i])) return false;
  }
  return GetSlice(*this, object, parts[0], parts[1], parts[2], out);
}

bool Runtime::EvalArguments(const Arguments& nodes, CallArgs* args) {
  for (const NodePtr& node : nodes.positional) {
    Value value;
    if (!Eval(*node, &value)) return false;
    args->positional.push_back(std::move(value));
  }
  for (const auto& [name, node] : nodes.named) {
    Value value;
    if (!Eval(*node, &value)) return false;
    for (const auto& given : args->named) {
      if (given.first == name) return Fail(Format("argument '{}' is given twice", name));
    }
    args->named.emplace_back(name, std::move(value));
  }
  if (nodes.spread != nullptr) {
    Value value, items;
    if (!Eval(*nodes.spread, &value) || !Iterate(*this, value, &items)) return false;
    const auto& list = items.sequence().items;
    if (!Charge(static_cast<int64_t>(list.size()))) return false;
    args->positional.insert(args->positional.end(), list.begin(), list.end());
  }
  if (nodes.spread_named != nullptr) {
    Value value;
    if (!Eval(*nodes.spread_named, &value)) return false;
    if (!value.is_dict()) return Fail(Format("'{}' after ** is not a dict", TypeName(value)));
    for (const auto& [key, item] : value.dict().entries) {
      if (!key.is_string()) return Fail("names of arguments after ** must be strings");
      args->named.emplace_back(std::string(key.str()), item);
    }
  }
  return true;
}

bool Runtime::EvalCall(const CallExpr& node, CallArgs args, Value* out) {
  Value callee;
  if (node.callee->kind == NodeKind::kAttribute) {
    // object.method(...): without a value for the bound method.
    const auto& attribute = static_cast<const AttributeExpr&>(*node.callee);
    Value object;
    if (!Eval(*attribute.object, &object)) return false;
    if (const Builtin method = FindMethod(object, attribute.name)) {
      return EvalArguments(node.args, &args) && method(*this, object, args, out);
    }
    if (!GetAttribute(*this, object, attribute.name, &callee)) return false;
  } else if (!Eval(*node.callee, &callee)) {
    return false;
  }
  return EvalArguments(node.args, &args) && Call(callee, args, out);
}

bool Runtime::EvalApply(const ApplyExpr& node, Value* out) {
  const bool is_test = node.kind == NodeKind::kTest;
  if (node.function == nullptr) {
    return Fail(Format("no {} named '{}'", is_test ? "test" : "filter", node.name));
  }
  Value input;
  CallArgs args;
  return Eval(*node.input, &input) && EvalArguments(node.args, &args) &&
         node.function(*this, input, args, out);
}

bool Runtime::EvalFilters(const Node& filters, Value text, Value* out) {
  std::vector<const ApplyExpr*> chain;
  for (const Node* node = &filters; node != nullptr;
       node = static_cast<const ApplyExpr*>(node)->input.get()) {
    chain.push_back(static_cast<const ApplyExpr*>(node));
  }
  *out = std::move(text);
  for (auto filter = chain.rbegin(); filter != chain.rend(); ++filter) {
    const ApplyExpr& node = **filter;
    CallArgs args;
    Value result;
    const bool ok = node.function != nullptr ? EvalArguments(node.args, &args) &&
                                                   node.function(*this, *out, args, &result)
                                             : Fail(Format("no filter named '{}'", node.name));
    if (!ok) {
      Locate(node);
      return false;
    }
    *out = std::move(result);
  }
  return true;
}

}  // namespace deepinfer::jinja
