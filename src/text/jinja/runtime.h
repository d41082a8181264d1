// Runs one Program once: evaluates expressions, executes statements, and enforces the limits on
// steps, memory, output and nesting. Methods return false after an error, which error() explains.
// Lives on one thread for one Render; the Program and the Json outlive it.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/jinja/loop.h"
#include "text/jinja/parser.h"
#include "text/jinja/value.h"

namespace deepinfer::jinja {

class Runtime {
 public:
  Runtime(const Program* program, const ChatTemplateLimits& limits);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // A variable of the outermost scope; false when it is too deep or too large.
  bool Define(std::string_view name, const Json& json, Trust trust);
  // `messages`: like Define, untrusted, except for the names of well-known roles.
  bool DefineMessages(std::string_view name, const Json& json);
  bool Run(MarkedText* out);
  const Status& error() const { return error_; }

  // For builtins and operators.
  bool Fail(std::string message);   // always false; the place is added on the way out
  bool Raise(std::string message);  // raise_exception: the message stands alone
  bool Charge(int64_t steps);
  bool ChargeBytes(size_t bytes) { return Charge(1 + static_cast<int64_t>(bytes / 64)); }
  // Whether a text of `bytes` may be built.
  bool CheckSize(size_t bytes);
  bool CheckMemory();
  bool MakeString(MarkedText text, Value* out);
  bool MakeMarkup(MarkedText text, Value* out);
  bool MakeSequence(SequenceType type, std::vector<Value> items, Value* out);
  bool MakeRange(int64_t start, int64_t stop, int64_t step, Value* out);
  bool MakeDict(std::shared_ptr<DictObject> dict, Value* out);
  bool MakeNamespace(std::vector<std::pair<std::string, Value>> attributes, Value* out);
  bool MakeFunction(std::string name, Builtin function, Value self, Value* out);
  bool MakeCallable(std::shared_ptr<CallableObject> callable, Value* out);
  bool Call(const Value& callee, CallArgs& args, Value* out);
  // Python's ==, charged.
  bool Equal(const Value& a, const Value& b, bool* equal);
  int nesting_max() const { return nesting_max_; }

  bool CallMacro(const MacroStmt& macro, const std::shared_ptr<Scope>& scope, CallArgs& args,
                 Value* out);

 private:
  // Nested Eval and Exec calls, together: keeps the stack of any thread safe.
  static constexpr int kRecursionMax = 1500;

  enum class Flow : uint8_t { kNext, kBreak, kContinue, kError };

  enum class TextKind : uint8_t { kPlain, kMarkup };
  bool MakeText(MarkedText text, TextKind kind, Value* out);

  // Expressions (evaluate.cc).
  bool Eval(const Node& node, Value* out);
  bool EvalKind(const Node& node, Value* out);
  bool EvalName(const NameExpr& node, Value* out);
  bool EvalItems(const Body& nodes, std::vector<Value>* out);
  bool EvalDict(const DictExpr& node, Value* out);
  bool EvalBinary(const BinaryExpr& node, Value* out);
  bool EvalLogical(const GroupExpr& node, Value* out);
  bool EvalCompare(const CompareExpr& node, Value* out);
  bool EvalConcat(const GroupExpr& node, Value* out);
  bool EvalConditional(const ConditionalExpr& node, Value* out);
  bool EvalItem(const ItemExpr& node, Value* out);
  bool EvalArguments(const Arguments& nodes, CallArgs* args);
  bool EvalCall(const CallExpr& node, CallArgs args, Value* out);
  bool EvalApply(const ApplyExpr& node, Value* out);
  // The filters of a block over its text.
  bool EvalFilters(const Node& filters, Value text, Value* out);

  // Statements (execute.cc).
  Flow ExecBody(const Body& body);
  Flow Exec(const Node& node);
  Flow ExecKind(const Node& node);
  Flow ExecIf(const IfStmt& node);
  Flow ExecFor(const ForStmt& node);
  Flow RunLoop(const ForStmt& node, Value sequence, int depth0);
  bool FilterItems(const ForStmt& node, Value* sequence);
  bool ExecSet(const SetStmt& node);
  Flow ExecSetBlock(const SetBlockStmt& node);
  bool ExecCallBlock(const CallBlockStmt& node);
  Flow ExecFilterBlock(const FilterBlockStmt& node);
  Flow ExecScoped(const WithStmt& node);
  bool Assign(const Node& target, Value value);
  bool Unpack(const GroupExpr& target, const Value& value);
  bool BindMacro(const MacroStmt& macro, CallArgs& args);
  void Capture(const std::shared_ptr<Scope>& scope);
  bool CallLoop(LoopObject& loop, CallArgs& args, Value* out);

  bool Write(std::string_view text, Trust trust);
  bool Write(const MarkedText& text);
  // Redirects output into a text of its own until EndCapture.
  struct Capturing {
    MarkedText text;
    MarkedText* outer = nullptr;
  };
  void BeginCapture(Capturing* capture);
  bool EndCapture(Capturing* capture, Value* out);

  bool FromJson(const Json& json, Trust trust, int depth, Value* out);
  bool JsonItems(const Json& json, Trust trust, int depth, Value* out);
  bool JsonMembers(const Json& json, Trust trust, int depth, Value* out);
  bool FinishContainer(const std::shared_ptr<Object>& object, int depth, int64_t weight,
                       size_t bytes);
  void Locate(const Node& node);

  const Program* program_;
  const ChatTemplateLimits limits_;
  const int nesting_max_;
  MemoryUse memory_;
  int64_t steps_left_;
  int recursion_ = 0;  // nested Eval and Exec
  int calls_ = 0;      // nested macros and loops
  Status error_;
  bool located_ = false;
  std::shared_ptr<Scope> scope_;  // current block; shared with macros defined in it
  MarkedText* out_ = nullptr;
  int captures_ = 0;
  // What may be part of a cycle; emptied by the destructor.
  std::vector<std::shared_ptr<Scope>> captured_;              // shared with macros
  std::vector<std::shared_ptr<NamespaceObject>> namespaces_;  // shared with values
};

}  // namespace deepinfer::jinja
