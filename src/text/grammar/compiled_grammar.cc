#include "text/grammar/compiled_grammar.h"

#include "base/format.h"
#include "base/hash.h"
#include "base/json.h"
#include "text/grammar/bnf_compiler.h"
#include "text/grammar/dfa_builder.h"
#include "text/grammar/grammar_program.h"
#include "text/grammar/regex_parser.h"
#include "text/grammar/schema_compiler.h"
#include "text/grammar/structural_tag.h"
#include "text/grammar/work_budget.h"
#include "text/unicode.h"

namespace deepinfer {

namespace {

uint64_t IdentityOf(const GrammarSource& source, const GrammarOptions& options) {
  const int64_t words[] = {static_cast<int64_t>(source.kind),
                           static_cast<int64_t>(options.whitespace),
                           static_cast<int64_t>(options.numbers),
                           static_cast<int64_t>(options.formats), options.depth_max};
  return HashText(source.text, HashBytes64(words, sizeof(words)));
}

Status StartWith(GrammarCallee::Kind kind, uint32_t index, GrammarProgram* program) {
  program->start = static_cast<uint32_t>(program->callees.size());
  program->callees.push_back({kind, index, 0, 0});
  return {};
}

Status CompileSchema(Json schema, const GrammarOptions& options, WorkBudget* budget,
                     GrammarProgram* program) {
  SchemaCompiler compiler(options, budget, program);
  DI_ASSIGN(const uint32_t value, compiler.Compile(std::move(schema)));
  return StartWith(GrammarCallee::Kind::kValue, value, program);
}

Status StartWithAutomaton(CodePointDfa automaton, GrammarProgram* program) {
  program->automata.push_back(std::move(automaton));
  return StartWith(GrammarCallee::Kind::kRule, static_cast<uint32_t>(program->automata.size() - 1),
                   program);
}

Status CompileRegex(const std::string& text, const GrammarOptions& options, WorkBudget* budget,
                    GrammarProgram* program) {
  SyntaxTree tree;
  DI_ASSIGN(const SyntaxId root, ParseRegex(text, options.depth_max, budget, &tree));
  DI_ASSIGN(CodePointDfa automaton,
            BuildDfa(tree, root, {.states_max = options.expression_states_max}, budget));
  if (automaton.shortest(CodePointDfa::kStart) == CodePointDfa::kInfinite) {
    return Invalid("regular expression: nothing matches it");
  }
  return StartWithAutomaton(std::move(automaton), program);
}

Status CompileChoice(const std::string& text, GrammarProgram* program) {
  DI_ASSIGN(const Json list, Json::Parse(text));
  if (!list.is_array() || list.items().empty()) {
    return Invalid("choice: a list of one string or more is wanted");
  }
  std::vector<std::string> texts;
  for (const Json& item : list.items()) {
    if (!item.is_string()) return Invalid("choice: every item must be a string");
    texts.push_back(item.string());
  }
  DI_ASSIGN(CodePointDfa automaton, CodePointDfa::OfTexts(texts));
  return StartWithAutomaton(std::move(automaton), program);
}

}  // namespace

Status CompileSource(const GrammarSource& source, const GrammarOptions& options, WorkBudget* budget,
                     GrammarProgram* program) {
  JsonLimits limits;
  limits.bytes_max = options.source_bytes_max;
  limits.depth_max = options.depth_max;
  switch (source.kind) {
    case GrammarSource::Kind::kJsonSchema: {
      DI_ASSIGN(Json schema, Json::Parse(source.text, limits));
      return CompileSchema(std::move(schema), options, budget, program);
    }
    case GrammarSource::Kind::kJsonObject: {
      Json schema = Json::Object();
      schema.Set("type", Json::String("object"));
      return CompileSchema(std::move(schema), options, budget, program);
    }
    case GrammarSource::Kind::kRegex:
      return CompileRegex(source.text, options, budget, program);
    case GrammarSource::Kind::kChoice:
      return CompileChoice(source.text, program);
    case GrammarSource::Kind::kBnf:
      return CompileBnf(source.text, options, budget, program);
    case GrammarSource::Kind::kStructuralTag:
      return CompileStructuralTag(source.text, options, budget, program);
  }
  return Invalid("this kind of grammar is not known");
}

size_t GrammarProgram::bytes() const {
  size_t total = sizeof(*this);
  for (const CodePointDfa& automaton : automata) total += automaton.bytes();
  for (const NumberPlan& number : numbers) {
    total += sizeof(number);
    for (const std::string& text : number.rule.texts()) total += text.size() + 32;
  }
  for (const ArrayPlan& array : arrays) total += sizeof(array) + array.prefix.size() * 12;
  for (const ObjectPlan& object : objects) {
    total += sizeof(object) + object.labels.size() * sizeof(object.labels[0]) +
             object.reach.size() * 8 + object.reach_other.size();
  }
  for (const ValueNode& value : values) {
    total += sizeof(value) + value.alternatives.size() * sizeof(ValueAlternative);
  }
  return total + strings.size() * sizeof(StringPlan) + callees.size() * sizeof(GrammarCallee);
}

CompiledGrammar::CompiledGrammar(std::unique_ptr<const GrammarProgram> program)
    : program_(std::move(program)), bytes_(program_->bytes()) {}

CompiledGrammar::~CompiledGrammar() = default;

Result<std::shared_ptr<const CompiledGrammar>> CompiledGrammar::Compile(
    const GrammarSource& source, const GrammarOptions& options) {
  if (source.text.size() > options.source_bytes_max) {
    return Status(StatusCode::kInvalid, Format("the grammar has {} bytes; at most {} are taken",
                                               source.text.size(), options.source_bytes_max));
  }
  auto program = std::make_unique<GrammarProgram>();
  program->automata.push_back(CodePointDfa::Anything());  // the first, as compilers expect
  program->whitespace = options.whitespace;
  program->depth_max = options.depth_max;
  program->escapes_anywhere = options.numbers == GrammarOptions::Numbers::kAnySpelling;
  program->identity = IdentityOf(source, options);
  WorkBudget budget(options.work_max);
  DI_TRY(CompileSource(source, options, &budget, program.get()));
  return std::shared_ptr<const CompiledGrammar>(new CompiledGrammar(std::move(program)));
}

}  // namespace deepinfer
