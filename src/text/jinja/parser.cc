#include "text/jinja/parser.h"

#include "base/format.h"
#include "text/jinja/builtins.h"
#include "text/jinja/code_points.h"
#include "text/jinja/parser_impl.h"

namespace deepinfer::jinja {
namespace {

// What every walk of the tree may recurse; chains such as a + b + c + ... add one level a term.
constexpr int kHeightMax = 400;

}  // namespace

Parser::Parser(Program* program, std::vector<Token> tokens, const ChatTemplateLimits& limits)
    : program_(program), tokens_(std::move(tokens)), depth_max_(limits.depth_max) {
  for (const char* name : {"loop", "caller", "varargs", "kwargs"}) SymbolOf(name);
}

Status Parser::Run() {
  ParseBody({}, &program_->body);
  return error_;
}

bool Parser::IsOp(std::string_view op) const {
  return current().type == TokenType::kOperator && current().text == op;
}

bool Parser::IsName(std::string_view name) const {
  return current().type == TokenType::kName && current().text == name;
}

bool Parser::SkipOp(std::string_view op) {
  if (!IsOp(op)) return false;
  ++at_;
  return true;
}

bool Parser::SkipName(std::string_view name) {
  if (!IsName(name)) return false;
  ++at_;
  return true;
}

bool Parser::ExpectOp(std::string_view op) {
  if (SkipOp(op)) return true;
  FailHere(Format("'{}'", op));
  return false;
}

bool Parser::ExpectName(std::string_view name) {
  if (SkipName(name)) return true;
  FailHere(Format("'{}'", name));
  return false;
}

bool Parser::Expect(TokenType type, std::string_view what) {
  if (current().type == type) {
    ++at_;
    return true;
  }
  FailHere(what);
  return false;
}

std::nullptr_t Parser::Fail(uint32_t offset, std::string_view message) {
  if (error_.ok()) error_ = ErrorAt(program_->source, offset, message);
  return nullptr;
}

std::nullptr_t Parser::FailHere(std::string_view wanted) {
  const Token& token = current();
  const std::string found = token.type == TokenType::kEnd    ? "the end of the template"
                            : token.type == TokenType::kData ? "template text"
                                                             : Format("'{}'", token.text);
  return Fail(token.offset, Format("expected {}, found {}", wanted, found));
}

Symbol Parser::SymbolOf(std::string_view name) {
  const auto found = symbols_.find(name);
  if (found != symbols_.end()) return found->second;
  const Symbol symbol = static_cast<Symbol>(program_->symbols.size());
  program_->symbols.emplace_back(name);
  symbols_.emplace(name, symbol);
  return symbol;
}

bool Parser::Raise(Node* parent, const Node* child) {
  if (child == nullptr) return error_.ok();
  parent->height = std::max(parent->height, child->height + 1);
  if (parent->height <= kHeightMax) return true;
  Fail(parent->offset, Format("too deep: more than {} nested or chained parts", kHeightMax));
  return false;
}

bool Parser::Raise(Node* parent, const Body& children) {
  for (const NodePtr& child : children) {
    if (!Raise(parent, child.get())) return false;
  }
  return true;
}

bool Parser::ParseBody(EndTags ends, Body* body) {
  const DepthGuard guard(&depth_);
  if (depth_ > depth_max_) {
    Fail(current().offset, Format("more than {} nested blocks", depth_max_));
    return false;
  }
  while (current().type != TokenType::kEnd) {
    const Token token = current();
    ++at_;
    if (token.type == TokenType::kData) {
      body->push_back(std::make_unique<DataStmt>(token.offset, std::string(token.text)));
      continue;
    }
    if (token.type == TokenType::kVariableBegin) {
      auto output = std::make_unique<OutputStmt>(token.offset);
      output->value = ParseTuple(true, "", false);
      if (output->value == nullptr || !Raise(output.get(), output->value.get())) return false;
      if (!Expect(TokenType::kVariableEnd, "'}}'")) return false;
      body->push_back(std::move(output));
      continue;
    }
    if (token.type != TokenType::kBlockBegin) {
      Fail(token.offset, Format("unexpected '{}'", token.text));
      return false;
    }
    for (std::string_view end : ends) {
      if (IsName(end)) return true;
    }
    NodePtr statement = ParseStatement();
    if (statement == nullptr || !Expect(TokenType::kBlockEnd, "'%}'")) return false;
    body->push_back(std::move(statement));
  }
  if (ends.empty()) return true;
  Fail(current().offset, Format("the template ends inside a block; expected {{% {} %}}", ends[0]));
  return false;
}

bool Parser::ParseBlock(EndTags ends, Body* body) {
  SkipOp(":");
  return Expect(TokenType::kBlockEnd, "'%}'") && ParseBody(ends, body);
}

NodePtr Parser::ParseStatement() {
  const Token tag = current();
  if (tag.type != TokenType::kName) return FailHere("a tag name");
  if (tag.text == "if") return ParseIf();
  if (tag.text == "for") return ParseFor();
  if (tag.text == "set") return ParseSet();
  if (tag.text == "macro") return ParseMacro();
  if (tag.text == "call") return ParseCallBlock();
  if (tag.text == "filter") return ParseFilterBlock();
  if (tag.text == "with") return ParseWith();
  if (tag.text == "generation") return ParseScope("endgeneration");
  if (tag.text == "break" || tag.text == "continue") {
    ++at_;
    if (loops_ == 0) return Fail(tag.offset, Format("'{}' outside a loop", tag.text));
    const bool is_break = tag.text == "break";
    return std::make_unique<WithStmt>(is_break ? NodeKind::kBreak : NodeKind::kContinue,
                                      tag.offset);
  }
  for (std::string_view name : {"include", "import", "from", "extends", "block"}) {
    if (tag.text == name) {
      return Fail(tag.offset,
                  Format("tag '{}' is not available: a chat template is one file", name));
    }
  }
  return Fail(tag.offset, Format("unknown tag '{}'", tag.text));
}

NodePtr Parser::ParseTargetItem(bool allow_namespace) {
  const Token token = current();
  if (SkipOp("(")) {
    NodePtr inner = ParseTarget("", allow_namespace);
    if (inner == nullptr || !ExpectOp(")")) return nullptr;
    return inner;
  }
  if (token.type != TokenType::kName) return FailHere("a name to assign to");
  for (std::string_view constant : {"true", "false", "none", "True", "False", "None"}) {
    if (token.text == constant) return Fail(token.offset, Format("cannot assign to {}", constant));
  }
  ++at_;
  if (allow_namespace && SkipOp(".")) {
    const Token attribute = current();
    if (!Expect(TokenType::kName, "an attribute name")) return nullptr;
    return std::make_unique<NamespaceTarget>(token.offset, SymbolOf(token.text),
                                             std::string(token.text), std::string(attribute.text));
  }
  if (token.text == "loop") return Fail(token.offset, "cannot assign to the loop variable");
  return std::make_unique<NameExpr>(token.offset, SymbolOf(token.text), std::string(token.text));
}

NodePtr Parser::ParseTarget(std::string_view end_name, bool allow_namespace) {
  const DepthGuard guard(&depth_);
  if (depth_ > depth_max_) return Fail(current().offset, "too many nested brackets");
  const uint32_t offset = current().offset;
  NodePtr first = ParseTargetItem(allow_namespace);
  if (first == nullptr || !IsOp(",")) return first;
  auto tuple = std::make_unique<GroupExpr>(NodeKind::kTuple, offset);
  tuple->items.push_back(std::move(first));
  while (SkipOp(",")) {
    if (IsOp("=") || IsOp(")") || (!end_name.empty() && IsName(end_name)) ||
        current().type == TokenType::kBlockEnd) {
      break;
    }
    NodePtr item = ParseTargetItem(allow_namespace);
    if (item == nullptr) return nullptr;
    tuple->items.push_back(std::move(item));
  }
  if (!Raise(tuple.get(), tuple->items)) return nullptr;
  return tuple;
}

// message.content, message['content'], or a variable that was set from one.
bool Parser::IsContent(const Node& node) const {
  if (node.kind == NodeKind::kAttribute) {
    return static_cast<const AttributeExpr&>(node).name == "content";
  }
  if (node.kind == NodeKind::kItem) {
    const Node& index = *static_cast<const ItemExpr&>(node).index;
    if (index.kind != NodeKind::kConst) return false;
    const Value& value = static_cast<const ConstExpr&>(index).value;
    return value.is_string() && value.str() == "content";
  }
  if (node.kind == NodeKind::kName) {
    return content_names_.contains(static_cast<const NameExpr&>(node).symbol);
  }
  return false;
}

void Parser::NoteLoopOver(const Node& iterable) {
  const Node* node = &iterable;
  while (node->kind == NodeKind::kFilter) node = static_cast<const ApplyExpr*>(node)->input.get();
  if (node != nullptr && IsContent(*node)) program_->iterates_content = true;
}

NodePtr Parser::ParseSet() {
  const uint32_t offset = current().offset;
  ++at_;
  NodePtr target = ParseTarget("", true);
  if (target == nullptr) return nullptr;
  if (SkipOp("=")) {
    auto set = std::make_unique<SetStmt>(offset);
    set->value = ParseTuple(true, "", false);
    if (set->value == nullptr || !Raise(set.get(), set->value.get())) return nullptr;
    if (target->kind == NodeKind::kName && IsContent(*set->value)) {
      content_names_.insert(static_cast<const NameExpr&>(*target).symbol);
    }
    set->target = std::move(target);
    return set;
  }
  auto set = std::make_unique<SetBlockStmt>(offset);
  set->target = std::move(target);
  if (IsOp("|")) {
    set->filter = ParseFilters(nullptr, false);
    if (set->filter == nullptr || !Raise(set.get(), set->filter.get())) return nullptr;
  }
  constexpr std::string_view kEnds[] = {"endset"};
  if (!ParseBlock(kEnds, &set->body) || !Raise(set.get(), set->body)) return nullptr;
  ++at_;
  return set;
}

NodePtr Parser::ParseFor() {
  auto loop = std::make_unique<ForStmt>(current().offset);
  ++at_;
  loop->target = ParseTarget("in", false);
  if (loop->target == nullptr || !ExpectName("in")) return nullptr;
  loop->iterable = ParseTuple(false, "recursive", false);
  if (loop->iterable == nullptr || !Raise(loop.get(), loop->iterable.get())) return nullptr;
  NoteLoopOver(*loop->iterable);
  if (SkipName("if")) {
    loop->filter = ParseExpression();
    if (loop->filter == nullptr || !Raise(loop.get(), loop->filter.get())) return nullptr;
  }
  loop->recursive = SkipName("recursive");
  constexpr std::string_view kEnds[] = {"endfor", "else"};
  ++loops_;
  const bool parsed = ParseBlock(kEnds, &loop->body) && Raise(loop.get(), loop->body);
  --loops_;
  if (!parsed) return nullptr;
  if (SkipName("endfor")) return loop;
  ++at_;
  constexpr std::string_view kElseEnds[] = {"endfor"};
  if (!ParseBlock(kElseEnds, &loop->otherwise) || !Raise(loop.get(), loop->otherwise)) {
    return nullptr;
  }
  ++at_;
  return loop;
}

NodePtr Parser::ParseIf() {
  auto node = std::make_unique<IfStmt>(current().offset);
  constexpr std::string_view kEnds[] = {"endif", "elif", "else"};
  do {
    ++at_;
    NodePtr condition = ParseTuple(false, "", false);
    if (condition == nullptr || !Raise(node.get(), condition.get())) return nullptr;
    Body body;
    if (!ParseBlock(kEnds, &body) || !Raise(node.get(), body)) return nullptr;
    node->branches.emplace_back(std::move(condition), std::move(body));
  } while (IsName("elif"));
  if (SkipName("endif")) return node;
  ++at_;
  constexpr std::string_view kElseEnds[] = {"endif"};
  if (!ParseBlock(kElseEnds, &node->otherwise) || !Raise(node.get(), node->otherwise)) {
    return nullptr;
  }
  ++at_;
  return node;
}

bool Parser::ParseSignature(MacroStmt* macro) {
  if (!ExpectOp("(")) return false;
  while (!IsOp(")")) {
    if (!macro->parameters.empty() && !ExpectOp(",")) return false;
    const Token token = current();
    if (!Expect(TokenType::kName, "a parameter name")) return false;
    MacroStmt::Parameter parameter{SymbolOf(token.text), std::string(token.text), nullptr};
    if (SkipOp("=")) {
      parameter.fallback = ParseExpression();
      if (parameter.fallback == nullptr || !Raise(macro, parameter.fallback.get())) return false;
    } else if (!macro->parameters.empty() && macro->parameters.back().fallback != nullptr) {
      Fail(token.offset, "a parameter without a default follows one with a default");
      return false;
    }
    macro->parameters.push_back(std::move(parameter));
  }
  return ExpectOp(")");
}

bool Parser::ParseMacroBody(MacroStmt* macro, std::string_view end_tag) {
  const std::string_view ends[] = {end_tag};
  const int loops = std::exchange(loops_, 0);
  macros_.push_back(macro);
  const bool parsed = ParseBlock(ends, &macro->body) && Raise(macro, macro->body);
  macros_.pop_back();
  loops_ = loops;
  if (parsed) ++at_;
  return parsed;
}

NodePtr Parser::ParseMacro() {
  auto macro = std::make_unique<MacroStmt>(current().offset);
  ++at_;
  const Token name = current();
  if (!Expect(TokenType::kName, "a macro name")) return nullptr;
  macro->name = std::string(name.text);
  macro->symbol = SymbolOf(name.text);
  if (!ParseSignature(macro.get()) || !ParseMacroBody(macro.get(), "endmacro")) return nullptr;
  return macro;
}

NodePtr Parser::ParseCallBlock() {
  auto block = std::make_unique<CallBlockStmt>(current().offset);
  ++at_;
  block->caller = std::make_unique<MacroStmt>(block->offset);
  block->caller->name = "caller";
  block->caller->symbol = kSymbolCaller;
  if (IsOp("(") && !ParseSignature(block->caller.get())) return nullptr;
  NodePtr call = ParseExpression();
  if (call == nullptr) return nullptr;
  if (call->kind != NodeKind::kCall) return Fail(block->offset, "expected a macro call");
  block->call.reset(static_cast<CallExpr*>(call.release()));
  if (!ParseMacroBody(block->caller.get(), "endcall")) return nullptr;
  if (!Raise(block.get(), block->call.get()) || !Raise(block.get(), block->caller.get())) {
    return nullptr;
  }
  return block;
}

NodePtr Parser::ParseFilterBlock() {
  auto block = std::make_unique<FilterBlockStmt>(current().offset);
  ++at_;
  block->filter = ParseFilters(nullptr, true);
  if (block->filter == nullptr || !Raise(block.get(), block->filter.get())) return nullptr;
  constexpr std::string_view kEnds[] = {"endfilter"};
  if (!ParseBlock(kEnds, &block->body) || !Raise(block.get(), block->body)) return nullptr;
  ++at_;
  return block;
}

NodePtr Parser::ParseWith() {
  auto with = std::make_unique<WithStmt>(NodeKind::kWith, current().offset);
  ++at_;
  while (current().type != TokenType::kBlockEnd) {
    if (!with->variables.empty() && !ExpectOp(",")) return nullptr;
    NodePtr target = ParseTargetItem(false);
    if (target == nullptr || !ExpectOp("=")) return nullptr;
    NodePtr value = ParseExpression();
    if (value == nullptr || !Raise(with.get(), value.get())) return nullptr;
    with->variables.emplace_back(std::move(target), std::move(value));
  }
  constexpr std::string_view kEnds[] = {"endwith"};
  if (!ParseBlock(kEnds, &with->body) || !Raise(with.get(), with->body)) return nullptr;
  ++at_;
  return with;
}

NodePtr Parser::ParseScope(std::string_view end_tag) {
  auto scope = std::make_unique<WithStmt>(NodeKind::kScope, current().offset);
  ++at_;
  const std::string_view ends[] = {end_tag};
  if (!ParseBlock(ends, &scope->body) || !Raise(scope.get(), scope->body)) return nullptr;
  ++at_;
  return scope;
}

Result<Program> ParseTemplate(std::string_view source, const ChatTemplateLimits& limits) {
  if (source.size() > limits.source_bytes_max) {
    return Invalid(Format("chat template: {} bytes are more than the limit of {}", source.size(),
                          limits.source_bytes_max));
  }
  if (!IsValidUtf8(source)) return Invalid("chat template: the source is not valid UTF-8");
  Program program;
  program.source = NormalizeSource(source);
  DI_ASSIGN(std::vector<Token> tokens, Tokenize(program.source));
  DI_TRY(Parser(&program, std::move(tokens), limits).Run());
  return program;
}

}  // namespace deepinfer::jinja
