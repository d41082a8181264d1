// The syntax tree of a template. Built by the parser, then only read; every node knows its place in
// the source. `height` bounds the recursion of whoever walks the tree.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace deepinfer::jinja {

// Filters, tests and methods: `self` is the value they apply to.
using Builtin = bool (*)(Runtime& runtime, const Value& self, CallArgs& args, Value* out);

// Names are numbered by the parser, so that scopes compare integers.
using Symbol = int;

enum class NodeKind : uint8_t {
  kConst,
  kName,
  kList,
  kTuple,
  kDict,
  kNegate,
  kPositive,
  kNot,
  kBinary,
  kAnd,
  kOr,
  kCompare,
  kConcat,
  kConditional,
  kAttribute,
  kItem,
  kSlice,
  kCall,
  kFilter,
  kTest,
  kData,
  kOutput,
  kIf,
  kFor,
  kSet,
  kSetBlock,
  kMacro,
  kCallBlock,
  kFilterBlock,
  kWith,
  kScope,
  kBreak,
  kContinue,
};

struct Node {
  explicit Node(NodeKind node_kind, uint32_t node_offset) : kind(node_kind), offset(node_offset) {}
  virtual ~Node() = default;
  const NodeKind kind;
  const uint32_t offset;
  int height = 1;
};
using NodePtr = std::unique_ptr<Node>;
using Body = std::vector<NodePtr>;

struct ConstExpr : Node {
  ConstExpr(uint32_t at, Value v) : Node(NodeKind::kConst, at), value(std::move(v)) {}
  Value value;
};

struct NameExpr : Node {
  NameExpr(uint32_t at, Symbol s, std::string n)
      : Node(NodeKind::kName, at), symbol(s), name(std::move(n)) {}
  Symbol symbol;
  std::string name;
};

// kList, kTuple, kConcat, kAnd, kOr (both sides), kNot, kNegate, kPositive (one operand), kData no
struct GroupExpr : Node {
  using Node::Node;
  Body items;
};

struct DictExpr : Node {
  explicit DictExpr(uint32_t at) : Node(NodeKind::kDict, at) {}
  std::vector<std::pair<NodePtr, NodePtr>> entries;
};

enum class BinaryOp : uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower
};

struct BinaryExpr : Node {
  BinaryExpr(uint32_t at, BinaryOp o) : Node(NodeKind::kBinary, at), op(o) {}
  BinaryOp op;
  NodePtr left, right;
};

enum class CompareOp : uint8_t {
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn
};

struct CompareExpr : Node {
  explicit CompareExpr(uint32_t at) : Node(NodeKind::kCompare, at) {}
  NodePtr first;
  std::vector<std::pair<CompareOp, NodePtr>> rest;  // a < b < c holds when every pair does
};

struct ConditionalExpr : Node {
  explicit ConditionalExpr(uint32_t at) : Node(NodeKind::kConditional, at) {}
  NodePtr condition, then, otherwise;  // otherwise may be null
};

struct AttributeExpr : Node {
  AttributeExpr(uint32_t at, std::string n) : Node(NodeKind::kAttribute, at), name(std::move(n)) {}
  NodePtr object;
  std::string name;
};

struct ItemExpr : Node {
  explicit ItemExpr(uint32_t at) : Node(NodeKind::kItem, at) {}
  NodePtr object, index;  // index may be a SliceExpr
};

struct SliceExpr : Node {
  explicit SliceExpr(uint32_t at) : Node(NodeKind::kSlice, at) {}
  NodePtr start, stop, step;  // each may be null
};

struct Arguments {
  Body positional;
  std::vector<std::pair<std::string, NodePtr>> named;
  NodePtr spread, spread_named;  // *args and **kwargs, may be null
};

struct CallExpr : Node {
  explicit CallExpr(uint32_t at) : Node(NodeKind::kCall, at) {}
  NodePtr callee;
  Arguments args;
};

// kFilter and kTest; `function` is null when the name is unknown (an error once evaluated).
struct ApplyExpr : Node {
  ApplyExpr(NodeKind k, uint32_t at, std::string n) : Node(k, at), name(std::move(n)) {}
  NodePtr input;  // null in {% filter %} and {% set x | f %}: the block's text
  std::string name;
  Builtin function = nullptr;
  Arguments args;
};

struct DataStmt : Node {
  DataStmt(uint32_t at, std::string t) : Node(NodeKind::kData, at), text(std::move(t)) {}
  std::string text;
};

struct OutputStmt : Node {
  explicit OutputStmt(uint32_t at) : Node(NodeKind::kOutput, at) {}
  NodePtr value;
};

struct IfStmt : Node {
  explicit IfStmt(uint32_t at) : Node(NodeKind::kIf, at) {}
  std::vector<std::pair<NodePtr, Body>> branches;  // if, elif...
  Body otherwise;
};

// Assignment targets: NameExpr, a kTuple GroupExpr of targets, or NamespaceTarget.
struct NamespaceTarget : Node {
  NamespaceTarget(uint32_t at, Symbol s, std::string n, std::string a)
      : Node(NodeKind::kAttribute, at), symbol(s), name(std::move(n)), attribute(std::move(a)) {}
  Symbol symbol;
  std::string name, attribute;
};

struct ForStmt : Node {
  explicit ForStmt(uint32_t at) : Node(NodeKind::kFor, at) {}
  NodePtr target, iterable, filter;  // filter may be null
  Body body, otherwise;
  bool recursive = false;
};

struct SetStmt : Node {
  explicit SetStmt(uint32_t at) : Node(NodeKind::kSet, at) {}
  NodePtr target, value;
};

struct SetBlockStmt : Node {
  explicit SetBlockStmt(uint32_t at) : Node(NodeKind::kSetBlock, at) {}
  NodePtr target, filter;  // filter may be null
  Body body;
};

struct MacroStmt : Node {  // kMacro, and the caller of a kCallBlock
  explicit MacroStmt(uint32_t at) : Node(NodeKind::kMacro, at) {}
  Symbol symbol = 0;
  std::string name;
  struct Parameter {
    Symbol symbol = 0;
    std::string name;
    NodePtr fallback;  // may be null
  };
  std::vector<Parameter> parameters;
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
  Body body;
};

struct CallBlockStmt : Node {
  explicit CallBlockStmt(uint32_t at) : Node(NodeKind::kCallBlock, at) {}
  std::unique_ptr<MacroStmt> caller;
  std::unique_ptr<CallExpr> call;
};

struct FilterBlockStmt : Node {
  explicit FilterBlockStmt(uint32_t at) : Node(NodeKind::kFilterBlock, at) {}
  NodePtr filter;
  Body body;
};

struct WithStmt : Node {  // kWith and kScope (no variables)
  using Node::Node;
  std::vector<std::pair<NodePtr, NodePtr>> variables;
  Body body;
};

}  // namespace deepinfer::jinja
