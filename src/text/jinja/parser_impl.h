// The parser's state and its two halves: statements (parser.cc) and expressions
// (parser_expressions.cc). Used by those two files alone. A method returns null after an error.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>

#include "text/jinja/lexer.h"
#include "text/jinja/parser.h"

namespace deepinfer::jinja {

class Parser {
 public:
  Parser(Program* program, std::vector<Token> tokens, const ChatTemplateLimits& limits);
  Status Run();

 private:
  // What may follow a body: the tags that end it.
  using EndTags = std::span<const std::string_view>;

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead(size_t n = 1) const { return tokens_[std::min(at_ + n, tokens_.size() - 1)]; }
  bool IsOp(std::string_view op) const;
  bool IsName(std::string_view name) const;
  bool SkipOp(std::string_view op);
  bool SkipName(std::string_view name);
  bool ExpectOp(std::string_view op);
  bool ExpectName(std::string_view name);
  bool Expect(TokenType type, std::string_view what);
  std::nullptr_t Fail(uint32_t offset, std::string_view message);
  std::nullptr_t FailHere(std::string_view wanted);
  Symbol SymbolOf(std::string_view name);
  // Records `child` in the height of `parent`; false when the tree grows too high.
  bool Raise(Node* parent, const Node* child);
  bool Raise(Node* parent, const Body& children);

  // Statements.
  bool ParseBody(EndTags ends, Body* body);
  bool ParseBlock(EndTags ends, Body* body);  // from the end of the opening tag
  NodePtr ParseStatement();
  NodePtr ParseSet();
  NodePtr ParseFor();
  NodePtr ParseIf();
  NodePtr ParseMacro();
  NodePtr ParseCallBlock();
  NodePtr ParseFilterBlock();
  NodePtr ParseWith();
  NodePtr ParseScope(std::string_view end_tag);
  bool ParseSignature(MacroStmt* macro);
  bool ParseMacroBody(MacroStmt* macro, std::string_view end_tag);
  NodePtr ParseTarget(std::string_view end_name, bool allow_namespace);
  NodePtr ParseTargetItem(bool allow_namespace);
  void NoteLoopOver(const Node& iterable);
  bool IsContent(const Node& node) const;

  // Expressions.
  NodePtr ParseTuple(bool with_condition, std::string_view end_name, bool parenthesised);
  NodePtr ParseExpression();
  NodePtr ParseConditional();
  NodePtr ParseOr();
  NodePtr ParseAnd();
  NodePtr ParseNot();
  NodePtr ParseCompare();
  NodePtr ParseSum();
  NodePtr ParseConcat();
  NodePtr ParseProduct();
  NodePtr ParsePower();
  NodePtr ParseUnary(bool with_filters);
  NodePtr ParsePrimary();
  NodePtr ParseNameOrConstant();
  NodePtr ParseNumber();
  NodePtr ParseStrings();
  NodePtr ParseList();
  NodePtr ParseDict();
  NodePtr ParsePostfix(NodePtr node);
  NodePtr ParseFiltersAndTests(NodePtr node);
  NodePtr ParseSubscript(NodePtr node);
  NodePtr ParseIndex();
  NodePtr ParseCall(NodePtr callee);
  NodePtr ParseFilters(NodePtr input, bool first_is_open);
  NodePtr ParseTest(NodePtr input);
  bool ParseArguments(Node* owner, Arguments* args);
  bool ParseArgument(Node* owner, Arguments* args);
  NodePtr Binary(BinaryOp op, uint32_t offset, NodePtr left, NodePtr right);
  std::optional<CompareOp> TakeCompareOp();

  struct DepthGuard {
    explicit DepthGuard(int* value) : depth(value) { ++*depth; }
    ~DepthGuard() { --*depth; }
    int* depth;
  };

  Program* program_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  const int depth_max_;
  int depth_ = 0;
  int loops_ = 0;  // loops around the current statement, for break
  Status error_;
  std::map<std::string, Symbol, std::less<>> symbols_;
  std::vector<MacroStmt*> macros_;  // macros around the current token
  std::set<Symbol> content_names_;  // variables set from message.content
};

}  // namespace deepinfer::jinja
