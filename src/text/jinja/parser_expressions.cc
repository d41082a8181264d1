#include <charconv>

#include "base/format.h"
#include "text/jinja/builtins.h"
#include "text/jinja/parser_impl.h"

namespace deepinfer::jinja {
namespace {

std::string WithoutUnderscores(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c != '_') out.push_back(c);
  }
  return out;
}

bool ParseInteger(std::string_view text, int64_t* value) {
  std::string digits = WithoutUnderscores(text);
  int base = 10;
  size_t skip = 0;
  if (digits.size() > 2 && digits[0] == '0') {
    const char c = static_cast<char>(digits[1] | 0x20);
    base = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 10;
    if (base != 10) skip = 2;
  }
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data() + skip, end, *value, base);
  return error == std::errc() && stop == end;
}

}  // namespace

NodePtr Parser::ParseTuple(bool with_condition, std::string_view end_name, bool parenthesised) {
  const uint32_t offset = current().offset;
  auto tuple = std::make_unique<GroupExpr>(NodeKind::kTuple, offset);
  bool is_tuple = false;
  while (true) {
    if (!tuple->items.empty() && !ExpectOp(",")) return nullptr;
    if (current().type == TokenType::kVariableEnd || current().type == TokenType::kBlockEnd ||
        IsOp(")") || (!end_name.empty() && IsName(end_name))) {
      break;
    }
    NodePtr item = with_condition ? ParseExpression() : ParseOr();
    if (item == nullptr) return nullptr;
    tuple->items.push_back(std::move(item));
    if (!IsOp(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !tuple->items.empty()) return std::move(tuple->items[0]);
  if (!is_tuple && !parenthesised) return FailHere("an expression");
  if (!Raise(tuple.get(), tuple->items)) return nullptr;
  return tuple;
}

NodePtr Parser::ParseExpression() {
  const DepthGuard guard(&depth_);
  if (depth_ > depth_max_) {
    return Fail(current().offset, Format("more than {} nested expressions", depth_max_));
  }
  return ParseConditional();
}

NodePtr Parser::ParseConditional() {
  NodePtr node = ParseOr();
  while (node != nullptr && IsName("if")) {
    auto conditional = std::make_unique<ConditionalExpr>(current().offset);
    ++at_;
    conditional->then = std::move(node);
    conditional->condition = ParseOr();
    if (conditional->condition == nullptr) return nullptr;
    if (SkipName("else")) {
      conditional->otherwise = ParseExpression();
      if (conditional->otherwise == nullptr) return nullptr;
    }
    if (!Raise(conditional.get(), conditional->then.get()) ||
        !Raise(conditional.get(), conditional->condition.get()) ||
        !Raise(conditional.get(), conditional->otherwise.get())) {
      return nullptr;
    }
    node = std::move(conditional);
  }
  return node;
}

NodePtr Parser::ParseOr() {
  NodePtr first = ParseAnd();
  if (first == nullptr || !IsName("or")) return first;
  auto node = std::make_unique<GroupExpr>(NodeKind::kOr, first->offset);
  node->items.push_back(std::move(first));
  while (SkipName("or")) {
    NodePtr next = ParseAnd();
    if (next == nullptr) return nullptr;
    node->items.push_back(std::move(next));
  }
  if (!Raise(node.get(), node->items)) return nullptr;
  return node;
}

NodePtr Parser::ParseAnd() {
  NodePtr first = ParseNot();
  if (first == nullptr || !IsName("and")) return first;
  auto node = std::make_unique<GroupExpr>(NodeKind::kAnd, first->offset);
  node->items.push_back(std::move(first));
  while (SkipName("and")) {
    NodePtr next = ParseNot();
    if (next == nullptr) return nullptr;
    node->items.push_back(std::move(next));
  }
  if (!Raise(node.get(), node->items)) return nullptr;
  return node;
}

NodePtr Parser::ParseNot() {
  if (!IsName("not")) return ParseCompare();
  const DepthGuard guard(&depth_);
  if (depth_ > depth_max_) return Fail(current().offset, "too many nested 'not'");
  auto node = std::make_unique<GroupExpr>(NodeKind::kNot, current().offset);
  ++at_;
  node->items.push_back(ParseNot());
  if (node->items[0] == nullptr || !Raise(node.get(), node->items)) return nullptr;
  return node;
}

std::optional<CompareOp> Parser::TakeCompareOp() {
  struct Entry {
    std::string_view text;
    CompareOp op;
  };
  constexpr Entry kOps[] = {{"==", CompareOp::kEqual},  {"!=", CompareOp::kNotEqual},
                            {"<", CompareOp::kLess},    {"<=", CompareOp::kLessEqual},
                            {">", CompareOp::kGreater}, {">=", CompareOp::kGreaterEqual}};
  for (const Entry& entry : kOps) {
    if (SkipOp(entry.text)) return entry.op;
  }
  if (SkipName("in")) return CompareOp::kIn;
  if (IsName("not") && ahead().type == TokenType::kName && ahead().text == "in") {
    at_ += 2;
    return CompareOp::kNotIn;
  }
  return std::nullopt;
}

NodePtr Parser::ParseCompare() {
  NodePtr first = ParseSum();
  if (first == nullptr) return nullptr;
  const uint32_t offset = current().offset;
  std::optional<CompareOp> op = TakeCompareOp();
  if (!op) return first;
  auto node = std::make_unique<CompareExpr>(offset);
  if (!Raise(node.get(), first.get())) return nullptr;
  node->first = std::move(first);
  for (; op; op = TakeCompareOp()) {
    NodePtr operand = ParseSum();
    if (operand == nullptr || !Raise(node.get(), operand.get())) return nullptr;
    node->rest.emplace_back(*op, std::move(operand));
  }
  return node;
}

NodePtr Parser::Binary(BinaryOp op, uint32_t offset, NodePtr left, NodePtr right) {
  if (right == nullptr) return nullptr;
  auto node = std::make_unique<BinaryExpr>(offset, op);
  if (!Raise(node.get(), left.get()) || !Raise(node.get(), right.get())) return nullptr;
  node->left = std::move(left);
  node->right = std::move(right);
  return node;
}

NodePtr Parser::ParseSum() {
  NodePtr node = ParseConcat();
  while (node != nullptr && (IsOp("+") || IsOp("-"))) {
    const Token op = current();
    ++at_;
    node = Binary(op.text == "+" ? BinaryOp::kAdd : BinaryOp::kSubtract, op.offset, std::move(node),
                  ParseConcat());
  }
  return node;
}

NodePtr Parser::ParseConcat() {
  NodePtr first = ParseProduct();
  if (first == nullptr || !IsOp("~")) return first;
  auto node = std::make_unique<GroupExpr>(NodeKind::kConcat, first->offset);
  node->items.push_back(std::move(first));
  while (SkipOp("~")) {
    NodePtr next = ParseProduct();
    if (next == nullptr) return nullptr;
    node->items.push_back(std::move(next));
  }
  if (!Raise(node.get(), node->items)) return nullptr;
  return node;
}

NodePtr Parser::ParseProduct() {
  NodePtr node = ParsePower();
  while (node != nullptr && (IsOp("*") || IsOp("/") || IsOp("//") || IsOp("%"))) {
    const Token op = current();
    ++at_;
    const BinaryOp kind = op.text == "*"   ? BinaryOp::kMultiply
                          : op.text == "/" ? BinaryOp::kDivide
                          : op.text == "%" ? BinaryOp::kModulo
                                           : BinaryOp::kFloorDivide;
    node = Binary(kind, op.offset, std::move(node), ParsePower());
  }
  return node;
}

NodePtr Parser::ParsePower() {
  NodePtr node = ParseUnary(true);
  while (node != nullptr && IsOp("**")) {
    const uint32_t offset = current().offset;
    ++at_;
    node = Binary(BinaryOp::kPower, offset, std::move(node), ParseUnary(true));
  }
  return node;
}

NodePtr Parser::ParseUnary(bool with_filters) {
  NodePtr node;
  if (IsOp("-") || IsOp("+")) {
    const DepthGuard guard(&depth_);
    if (depth_ > depth_max_) return Fail(current().offset, "too many nested signs");
    auto sign = std::make_unique<GroupExpr>(IsOp("-") ? NodeKind::kNegate : NodeKind::kPositive,
                                            current().offset);
    ++at_;
    sign->items.push_back(ParseUnary(false));
    if (sign->items[0] == nullptr || !Raise(sign.get(), sign->items)) return nullptr;
    node = std::move(sign);
  } else {
    node = ParsePrimary();
  }
  if (node != nullptr) node = ParsePostfix(std::move(node));
  if (node != nullptr && with_filters) node = ParseFiltersAndTests(std::move(node));
  return node;
}

NodePtr Parser::ParsePrimary() {
  switch (current().type) {
    case TokenType::kName:
      return ParseNameOrConstant();
    case TokenType::kString:
      return ParseStrings();
    case TokenType::kInteger:
    case TokenType::kFloat:
      return ParseNumber();
    default:
      break;
  }
  if (IsOp("[")) return ParseList();
  if (IsOp("{")) return ParseDict();
  if (!IsOp("(")) return FailHere("an expression");
  ++at_;
  const DepthGuard guard(&depth_);
  if (depth_ > depth_max_) return Fail(current().offset, "too many nested brackets");
  NodePtr node = ParseTuple(true, "", true);
  if (node == nullptr || !ExpectOp(")")) return nullptr;
  return node;
}

NodePtr Parser::ParseNameOrConstant() {
  const Token token = current();
  ++at_;
  if (token.text == "true" || token.text == "True") {
    return std::make_unique<ConstExpr>(token.offset, Value::Bool(true));
  }
  if (token.text == "false" || token.text == "False") {
    return std::make_unique<ConstExpr>(token.offset, Value::Bool(false));
  }
  if (token.text == "none" || token.text == "None") {
    return std::make_unique<ConstExpr>(token.offset, Value::None());
  }
  const Symbol symbol = SymbolOf(token.text);
  for (MacroStmt* macro : macros_) {
    macro->uses_caller |= symbol == kSymbolCaller;
    macro->uses_varargs |= symbol == kSymbolVarargs;
    macro->uses_kwargs |= symbol == kSymbolKwargs;
  }
  return std::make_unique<NameExpr>(token.offset, symbol, std::string(token.text));
}

NodePtr Parser::ParseNumber() {
  const Token token = current();
  ++at_;
  if (token.type == TokenType::kInteger) {
    int64_t value = 0;
    if (!ParseInteger(token.text, &value)) {
      return Fail(token.offset, Format("integer {} does not fit 64 bits", token.text));
    }
    return std::make_unique<ConstExpr>(token.offset, Value::Int(value));
  }
  const std::string text = WithoutUnderscores(token.text);
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) {
    return Fail(token.offset, Format("number {} is out of range", token.text));
  }
  return std::make_unique<ConstExpr>(token.offset, Value::Float(value));
}

NodePtr Parser::ParseStrings() {
  const uint32_t offset = current().offset;
  std::string joined;
  for (; current().type == TokenType::kString; ++at_) {
    Result<std::string> text = Unescape(current().text);
    if (!text.ok()) return Fail(current().offset, text.status().message());
    joined += *text;
  }
  return std::make_unique<ConstExpr>(offset,
                                     Value::String(MarkedText(std::move(joined), Trust::kTrusted)));
}

NodePtr Parser::ParseList() {
  auto list = std::make_unique<GroupExpr>(NodeKind::kList, current().offset);
  ++at_;
  while (!IsOp("]")) {
    if (!list->items.empty() && !ExpectOp(",")) return nullptr;
    if (IsOp("]")) break;
    NodePtr item = ParseExpression();
    if (item == nullptr || !Raise(list.get(), item.get())) return nullptr;
    list->items.push_back(std::move(item));
  }
  ++at_;
  return list;
}

NodePtr Parser::ParseDict() {
  auto dict = std::make_unique<DictExpr>(current().offset);
  ++at_;
  while (!IsOp("}")) {
    if (!dict->entries.empty() && !ExpectOp(",")) return nullptr;
    if (IsOp("}")) break;
    NodePtr key = ParseExpression();
    if (key == nullptr || !Raise(dict.get(), key.get()) || !ExpectOp(":")) return nullptr;
    NodePtr value = ParseExpression();
    if (value == nullptr || !Raise(dict.get(), value.get())) return nullptr;
    dict->entries.emplace_back(std::move(key), std::move(value));
  }
  ++at_;
  return dict;
}

NodePtr Parser::ParsePostfix(NodePtr node) {
  while (node != nullptr) {
    if (IsOp(".") || IsOp("[")) {
      node = ParseSubscript(std::move(node));
    } else if (IsOp("(")) {
      node = ParseCall(std::move(node));
    } else {
      break;
    }
  }
  return node;
}

NodePtr Parser::ParseFiltersAndTests(NodePtr node) {
  while (node != nullptr) {
    if (IsOp("|")) {
      node = ParseFilters(std::move(node), false);
    } else if (IsName("is")) {
      node = ParseTest(std::move(node));
    } else if (IsOp("(")) {
      node = ParseCall(std::move(node));
    } else {
      break;
    }
  }
  return node;
}

NodePtr Parser::ParseSubscript(NodePtr node) {
  const Token open = current();
  ++at_;
  if (open.text == "." && current().type == TokenType::kName) {
    auto attribute = std::make_unique<AttributeExpr>(open.offset, std::string(current().text));
    ++at_;
    if (!Raise(attribute.get(), node.get())) return nullptr;
    attribute->object = std::move(node);
    return attribute;
  }
  auto item = std::make_unique<ItemExpr>(open.offset);
  if (open.text == ".") {
    if (current().type != TokenType::kInteger) return FailHere("a name or a number");
    item->index = ParseNumber();
  } else {
    auto tuple = std::make_unique<GroupExpr>(NodeKind::kTuple, open.offset);
    while (!IsOp("]")) {
      if (!tuple->items.empty() && !ExpectOp(",")) return nullptr;
      NodePtr index = ParseIndex();
      if (index == nullptr || !Raise(tuple.get(), index.get())) return nullptr;
      if (!tuple->items.empty() && index->kind == NodeKind::kSlice) {
        return Fail(index->offset, "a slice cannot be part of a tuple");
      }
      tuple->items.push_back(std::move(index));
    }
    ++at_;
    if (tuple->items.size() > 1 && tuple->items[0]->kind == NodeKind::kSlice) {
      return Fail(open.offset, "a slice cannot be part of a tuple");
    }
    item->index = tuple->items.size() == 1 ? std::move(tuple->items[0]) : std::move(tuple);
  }
  if (item->index == nullptr || !Raise(item.get(), item->index.get()) ||
      !Raise(item.get(), node.get())) {
    return nullptr;
  }
  item->object = std::move(node);
  return item;
}

NodePtr Parser::ParseIndex() {
  const uint32_t offset = current().offset;
  NodePtr start;
  if (!IsOp(":")) {
    start = ParseExpression();
    if (start == nullptr || !IsOp(":")) return start;
  }
  ++at_;
  auto slice = std::make_unique<SliceExpr>(offset);
  slice->start = std::move(start);
  if (!IsOp(":") && !IsOp("]") && !IsOp(",")) {
    slice->stop = ParseExpression();
    if (slice->stop == nullptr) return nullptr;
  }
  if (SkipOp(":") && !IsOp("]") && !IsOp(",")) {
    slice->step = ParseExpression();
    if (slice->step == nullptr) return nullptr;
  }
  for (const NodePtr* part : {&slice->start, &slice->stop, &slice->step}) {
    if (!Raise(slice.get(), part->get())) return nullptr;
  }
  return slice;
}

bool Parser::ParseArgument(Node* owner, Arguments* args) {
  const Token token = current();
  NodePtr* slot = nullptr;
  if (SkipOp("*")) {
    slot = &args->spread;
  } else if (SkipOp("**")) {
    slot = &args->spread_named;
  }
  if (slot != nullptr && (*slot != nullptr || (args->spread_named != nullptr))) {
    Fail(token.offset, "invalid order of call arguments");
    return false;
  }
  std::string name;
  if (slot == nullptr && token.type == TokenType::kName && ahead().type == TokenType::kOperator &&
      ahead().text == "=") {
    name = std::string(token.text);
    at_ += 2;
  } else if (slot == nullptr &&
             (args->spread != nullptr || args->spread_named != nullptr || !args->named.empty())) {
    Fail(token.offset, "a positional argument follows a named one");
    return false;
  }
  NodePtr value = ParseExpression();
  if (value == nullptr || !Raise(owner, value.get())) return false;
  if (slot != nullptr) {
    *slot = std::move(value);
  } else if (!name.empty()) {
    args->named.emplace_back(std::move(name), std::move(value));
  } else {
    args->positional.push_back(std::move(value));
  }
  return true;
}

bool Parser::ParseArguments(Node* owner, Arguments* args) {
  ++at_;  // the bracket
  bool first = true;
  while (!IsOp(")")) {
    if (!first && !ExpectOp(",")) return false;
    if (!first && IsOp(")")) break;
    if (!ParseArgument(owner, args)) return false;
    first = false;
  }
  ++at_;
  return true;
}

NodePtr Parser::ParseCall(NodePtr callee) {
  auto call = std::make_unique<CallExpr>(current().offset);
  if (!Raise(call.get(), callee.get()) || !ParseArguments(call.get(), &call->args)) return nullptr;
  call->callee = std::move(callee);
  return call;
}

NodePtr Parser::ParseFilters(NodePtr input, bool first_is_open) {
  while (first_is_open || IsOp("|")) {
    if (!first_is_open) ++at_;
    first_is_open = false;
    const Token name = current();
    if (!Expect(TokenType::kName, "a filter name")) return nullptr;
    auto filter =
        std::make_unique<ApplyExpr>(NodeKind::kFilter, name.offset, std::string(name.text));
    filter->function = FindFilter(name.text);
    if (IsOp("(") && !ParseArguments(filter.get(), &filter->args)) return nullptr;
    if (!Raise(filter.get(), input.get())) return nullptr;
    filter->input = std::move(input);
    input = std::move(filter);
  }
  return input;
}

NodePtr Parser::ParseTest(NodePtr input) {
  const uint32_t offset = current().offset;
  ++at_;
  const bool negated = SkipName("not");
  const Token name = current();
  if (!Expect(TokenType::kName, "a test name")) return nullptr;
  auto test = std::make_unique<ApplyExpr>(NodeKind::kTest, name.offset, std::string(name.text));
  test->function = FindTest(name.text);
  if (name.text == "string" && IsContent(*input)) program_->tests_content_string = true;
  const TokenType next = current().type;
  const bool operand = next == TokenType::kName || next == TokenType::kString ||
                       next == TokenType::kInteger || next == TokenType::kFloat || IsOp("[") ||
                       IsOp("{");
  if (IsOp("(")) {
    if (!ParseArguments(test.get(), &test->args)) return nullptr;
  } else if (operand && !IsName("else") && !IsName("or") && !IsName("and")) {
    if (IsName("is")) return Fail(current().offset, "tests cannot be chained with 'is'");
    NodePtr argument = ParsePrimary();
    if (argument != nullptr) argument = ParsePostfix(std::move(argument));
    if (argument == nullptr || !Raise(test.get(), argument.get())) return nullptr;
    test->args.positional.push_back(std::move(argument));
  }
  if (!Raise(test.get(), input.get())) return nullptr;
  test->input = std::move(input);
  if (!negated) return test;
  auto node = std::make_unique<GroupExpr>(NodeKind::kNot, offset);
  node->items.push_back(std::move(test));
  if (!Raise(node.get(), node->items)) return nullptr;
  return node;
}

}  // namespace deepinfer::jinja
