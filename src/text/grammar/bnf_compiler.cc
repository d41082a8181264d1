#include "text/grammar/bnf_compiler.h"

#include <algorithm>

#include "base/format.h"
#include "base/json.h"
#include "text/grammar/bnf_parser.h"
#include "text/grammar/compiled_grammar.h"
#include "text/grammar/dfa_builder.h"
#include "text/grammar/dfa_product.h"
#include "text/grammar/schema_compiler.h"
#include "text/unicode.h"

namespace deepinfer {

namespace {

constexpr uint64_t kUnrolledMax = 1500;  // nodes; larger pieces stay rules and counters
constexpr int kInlineHeight = 300;

using Kind = SyntaxNode::Kind;

CodePointDfa TextWithout(const std::string& end);
Result<GrammarSource> ReadEmbedded(const std::string& text, int depth_max);

class BnfCompiler {
 public:
  BnfCompiler(BnfGrammar grammar, const GrammarOptions& options, WorkBudget* budget,
              GrammarProgram* program)
      : in_(std::move(grammar)), options_(options), budget_(budget), program_(program) {}

  Status Compile() {
    const size_t n = in_.rules.size();
    if (n > options_.states_max) return Invalid("grammar: too many rules");
    productive_ = Fixpoint(Property::kProductive);
    nullable_ = Fixpoint(Property::kNullable);
    if (!productive_[in_.root]) return Invalid("grammar: rule \"root\" never comes to an end");
    DI_TRY(RefuseLeftRecursion());
    FindOrder();
    rewritten_.assign(n, 0);
    sizes_.assign(n, 0);
    callees_.assign(n, kNoCallee);
    for (const uint32_t rule : order_) {
      if (recursive_[rule]) callees_[rule] = AddCallee();
      if (in_.specials[rule].kind != BnfSpecial::Kind::kNone) {
        DI_TRY(CompileSpecial(in_.specials[rule], &callees_[rule]));
      }
    }
    for (const uint32_t rule : order_) {
      if (in_.specials[rule].kind != BnfSpecial::Kind::kNone) continue;
      DI_ASSIGN(rewritten_[rule], Rewrite(in_.rules[rule], &sizes_[rule]));
      const bool large =
          sizes_[rule] > kUnrolledMax || out_.node(rewritten_[rule]).height > kInlineHeight;
      if (callees_[rule] == kNoCallee && (large || rule == in_.root)) callees_[rule] = AddCallee();
      if (callees_[rule] != kNoCallee) DI_TRY(Build(rewritten_[rule], callees_[rule]));
    }
    program_->start = callees_[in_.root];
    return {};
  }

 private:
  enum class Property { kProductive, kNullable };
  static constexpr uint32_t kNoCallee = UINT32_MAX;

  uint32_t AddCallee() {
    program_->callees.push_back({GrammarCallee::Kind::kRule, 0, 0, 0});
    return static_cast<uint32_t>(program_->callees.size() - 1);
  }

  Status CompileSpecial(const BnfSpecial& special, uint32_t* callee) {
    if (special.kind == BnfSpecial::Kind::kUntil) return CompileUntil(special.ends, callee);
    if (special.kind == BnfSpecial::Kind::kGrammar) {
      DI_ASSIGN(const GrammarSource source, ReadEmbedded(special.text, options_.depth_max));
      DI_TRY(CompileSource(source, options_, budget_, program_));
      *callee = program_->start;
      return {};
    }
    JsonLimits limits;
    limits.depth_max = options_.depth_max;
    DI_ASSIGN(Json schema, Json::Parse(special.text, limits));
    SchemaCompiler compiler(options_, budget_, program_);
    DI_ASSIGN(const uint32_t value, compiler.Compile(std::move(schema)));
    *callee = static_cast<uint32_t>(program_->callees.size());
    program_->callees.push_back({GrammarCallee::Kind::kValue, value, 0, 0});
    return {};
  }

  Status CompileUntil(const std::vector<std::string>& ends, uint32_t* callee) {
    std::vector<CodePointDfa> automata;
    std::vector<const CodePointDfa*> parts;
    for (const std::string& end : ends) automata.push_back(TextWithout(end));
    for (const CodePointDfa& automaton : automata) parts.push_back(&automaton);
    const auto label = [](std::span<const uint32_t> states) {
      const bool dead =
          std::find(states.begin(), states.end(), CodePointDfa::kDead) != states.end();
      return dead ? kDropState : 1U;
    };
    *callee = AddCallee();
    if (parts.size() > 1) {
      DI_ASSIGN(automata[0], BuildProduct(parts, label, options_.states_max, budget_));
    }
    program_->callees[*callee].index = static_cast<uint32_t>(program_->automata.size());
    program_->automata.push_back(std::move(automata[0]));
    return {};
  }

  Status Build(SyntaxId root, uint32_t callee) {
    DI_ASSIGN(CodePointDfa automaton,
              BuildDfa(out_, root, {.states_max = options_.expression_states_max}, budget_));
    program_->callees[callee].index = static_cast<uint32_t>(program_->automata.size());
    program_->automata.push_back(std::move(automaton));
    return {};
  }

  bool Holds(Property property, SyntaxId id, const std::vector<bool>& rules) const {
    const SyntaxNode& node = in_.tree.node(id);
    const auto part = [&](SyntaxId inner) { return Holds(property, inner, rules); };
    switch (node.kind) {
      case Kind::kSequence:
        return std::all_of(node.parts.begin(), node.parts.end(), part);
      case Kind::kAlternate:
        return std::any_of(node.parts.begin(), node.parts.end(), part);
      case Kind::kRepeat:
        return node.min == 0 || part(node.parts[0]);
      case Kind::kSet:
        return property == Property::kProductive && !node.set.empty();
      case Kind::kCall:
        return rules[node.callee];
      default:
        return true;
    }
  }

  // Rules are revisited only when one that they call has changed.
  std::vector<bool> Fixpoint(Property property) const {
    const size_t n = in_.rules.size();
    std::vector<std::vector<uint32_t>> users(n);
    for (uint32_t rule = 0; rule < n; ++rule) {
      std::vector<uint32_t> called;
      CollectCalls(in_.rules[rule], &called);
      std::sort(called.begin(), called.end());
      called.erase(std::unique(called.begin(), called.end()), called.end());
      for (const uint32_t callee : called) users[callee].push_back(rule);
    }
    std::vector<bool> holds(n, false);
    std::vector<uint32_t> work;
    for (uint32_t rule = 0; rule < n; ++rule) {
      // A value is never empty; the rule that stands for it looks so.
      const bool value = in_.specials[rule].kind == BnfSpecial::Kind::kSchema;
      if (!value || property == Property::kProductive) work.push_back(rule);
    }
    while (!work.empty()) {
      const uint32_t rule = work.back();
      work.pop_back();
      if (holds[rule] || !Holds(property, in_.rules[rule], holds)) continue;
      holds[rule] = true;
      work.insert(work.end(), users[rule].begin(), users[rule].end());
    }
    return holds;
  }

  void CollectCalls(SyntaxId id, std::vector<uint32_t>* called) const {
    const SyntaxNode& node = in_.tree.node(id);
    if (node.kind == Kind::kCall) called->push_back(node.callee);
    for (const SyntaxId part : node.parts) CollectCalls(part, called);
  }

  // The calls that can come before anything is read. False when `id` may be empty.
  bool CollectFirst(SyntaxId id, std::vector<uint32_t>* called) const {
    const SyntaxNode& node = in_.tree.node(id);
    switch (node.kind) {
      case Kind::kSequence:
        for (const SyntaxId part : node.parts) {
          if (CollectFirst(part, called)) return true;
        }
        return false;
      case Kind::kAlternate: {
        bool reads = true;
        for (const SyntaxId part : node.parts) reads = CollectFirst(part, called) && reads;
        return reads;
      }
      case Kind::kRepeat: {
        const bool reads = CollectFirst(node.parts[0], called);
        return reads && node.min > 0;
      }
      case Kind::kCall:
        called->push_back(node.callee);
        return !nullable_[node.callee];
      default:
        return true;
    }
  }

  // Depth first over the rules; `visit` gets each rule after what it calls, `loop` each rule that
  // is called while it is still open.
  template <typename Calls, typename Visit, typename Loop>
  void Search(const Calls& calls, const Visit& visit, const Loop& loop) const {
    enum : uint8_t { kNew, kOpen, kDone };
    struct Item {
      uint32_t rule;
      std::vector<uint32_t> called;
      size_t next = 0;
    };
    std::vector<uint8_t> state(in_.rules.size(), kNew);
    std::vector<Item> stack;
    const auto open = [&](uint32_t rule) {
      state[rule] = kOpen;
      stack.push_back({rule, {}, 0});
      calls(rule, &stack.back().called);
    };
    open(static_cast<uint32_t>(in_.root));
    while (!stack.empty()) {
      Item& item = stack.back();
      if (item.next == item.called.size()) {
        state[item.rule] = kDone;
        visit(item.rule);
        stack.pop_back();
        continue;
      }
      const uint32_t callee = item.called[item.next++];
      if (state[callee] == kOpen) {
        loop(callee);
      } else if (state[callee] == kNew) {
        open(callee);
      }
    }
  }

  Status RefuseLeftRecursion() const {
    const uint32_t found = FindLeftLoop();
    if (found == kNoCallee) return {};
    return Invalid(
        Format("grammar: rule \"{}\" is left-recursive: write a ::= b (op b)* instead "
               "of a ::= a op b | b",
               in_.names[found]));
  }

  // A rule that can begin with itself.
  uint32_t FindLeftLoop() const {
    enum : uint8_t { kNew, kOpen, kDone };
    std::vector<uint8_t> state(in_.rules.size(), kNew);
    std::vector<std::pair<uint32_t, std::vector<uint32_t>>> stack;
    for (uint32_t start = 0; start < in_.rules.size(); ++start) {
      if (state[start] != kNew) continue;
      const auto open = [&](uint32_t rule) {
        state[rule] = kOpen;
        std::vector<uint32_t> called;
        CollectFirst(in_.rules[rule], &called);
        stack.emplace_back(rule, std::move(called));
      };
      open(start);
      while (!stack.empty()) {
        auto& [rule, called] = stack.back();
        if (called.empty()) {
          state[rule] = kDone;
          stack.pop_back();
          continue;
        }
        const uint32_t callee = called.back();
        called.pop_back();
        if (state[callee] == kOpen) return callee;
        if (state[callee] == kNew) open(callee);
      }
    }
    return kNoCallee;
  }

  void FindOrder() {
    recursive_.assign(in_.rules.size(), false);
    Search([&](uint32_t rule,
               std::vector<uint32_t>* called) { CollectCalls(in_.rules[rule], called); },
           [&](uint32_t rule) { order_.push_back(rule); },
           [&](uint32_t rule) { recursive_[rule] = true; });
  }

  Result<SyntaxId> Rewrite(SyntaxId id, uint64_t* size) {
    const SyntaxNode node = in_.tree.node(id);
    *size = 1;
    switch (node.kind) {
      case Kind::kSet:
        return out_.Set(node.set);
      case Kind::kSequence:
      case Kind::kAlternate: {
        std::vector<SyntaxId> parts;
        for (const SyntaxId part : node.parts) {
          uint64_t inner = 0;
          DI_ASSIGN(const SyntaxId copy, Rewrite(part, &inner));
          parts.push_back(copy);
          *size += inner;
        }
        return node.kind == Kind::kSequence ? out_.Sequence(std::move(parts))
                                            : out_.Alternate(std::move(parts));
      }
      case Kind::kCall:
        if (!productive_[node.callee]) return out_.Alternate({});
        if (callees_[node.callee] != kNoCallee) return out_.Call(callees_[node.callee]);
        *size = sizes_[node.callee];
        return rewritten_[node.callee];
      case Kind::kRepeat:
        return RewriteRepeat(node, size);
      default:
        return out_.Anchor(node.kind);
    }
  }

  Result<SyntaxId> RewriteRepeat(const SyntaxNode& node, uint64_t* size) {
    uint64_t inner = 0;
    DI_ASSIGN(const SyntaxId part, Rewrite(node.parts[0], &inner));
    const bool nullable = Holds(Property::kNullable, node.parts[0], nullable_);
    const uint32_t min = nullable ? 0 : node.min;
    const uint64_t copies = node.max == kUnbounded ? uint64_t{min} + 1 : node.max;
    if (copies * inner <= kUnrolledMax) {
      *size = copies * inner + 1;
      return out_.Repeat(part, min, node.max);
    }
    if (nullable && node.max != kUnbounded) {
      return Invalid(
          Format("grammar: up to {} repetitions of something that may be empty: make it "
                 "not empty, or repeat without a limit",
                 node.max));
    }
    *size = 1;
    const uint32_t body = AddCallee();
    DI_TRY(Build(part, body));
    if (min == 0 && node.max == kUnbounded) return out_.Repeat(out_.Call(body), 0, kUnbounded);
    program_->callees.push_back({GrammarCallee::Kind::kRepeat, body, min, node.max});
    return out_.Call(static_cast<uint32_t>(program_->callees.size() - 1));
  }

  const BnfGrammar in_;
  const GrammarOptions& options_;
  WorkBudget* budget_;
  GrammarProgram* program_;
  SyntaxTree out_;
  std::vector<bool> productive_;
  std::vector<bool> nullable_;
  std::vector<bool> recursive_;
  std::vector<uint32_t> order_;      // reachable rules, callees before callers
  std::vector<SyntaxId> rewritten_;  // in out_
  std::vector<uint64_t> sizes_;
  std::vector<uint32_t> callees_;
};

// Every text that does not hold `end`: the search for it, without its last step.
CodePointDfa TextWithout(const std::string& end) {
  std::u32string text;
  int length = 0;
  for (size_t at = 0; at < end.size(); at += static_cast<size_t>(length)) {
    text.push_back(DecodeUtf8(end.data() + at, &length));
  }
  std::u32string used = text;
  std::sort(used.begin(), used.end());
  used.erase(std::unique(used.begin(), used.end()), used.end());
  std::vector<CodePointSet> sets;
  for (const char32_t cp : used) sets.push_back(CodePointSet::Single(cp));
  std::vector<std::vector<uint32_t>> classes;
  CodePointDfa dfa(PartitionCodePoints(sets, &classes));
  dfa.AddState();
  for (size_t i = 0; i < text.size(); ++i) dfa.SetLabel(dfa.AddState(), 1);
  // State i + 1 has read i characters of `end`; `fallback` is where a shorter start of it stands.
  uint32_t fallback = CodePointDfa::kStart;
  for (uint32_t i = 0; i < text.size(); ++i) {
    const uint32_t state = i + 1;
    for (uint32_t c = 0; c < dfa.num_classes(); ++c) {
      dfa.SetNext(state, c, i == 0 ? CodePointDfa::kStart : dfa.NextOfClass(fallback, c));
    }
    const uint32_t next = dfa.ClassOf(text[i]);
    if (i > 0) fallback = dfa.NextOfClass(fallback, next);
    dfa.SetNext(state, next, i + 1 < text.size() ? state + 1 : CodePointDfa::kDead);
  }
  dfa.Finish();
  return dfa;
}

// {"regex": ...} and so on: one member.
Result<GrammarSource> ReadEmbedded(const std::string& text, int depth_max) {
  JsonLimits limits;
  limits.depth_max = depth_max;
  DI_ASSIGN(const Json json, Json::Parse(text, limits));
  using Source = GrammarSource::Kind;
  for (const auto& [key, kind] :
       {std::pair{"regex", Source::kRegex}, std::pair{"grammar", Source::kBnf},
        std::pair{"choice", Source::kChoice},
        std::pair{"structural_tag", Source::kStructuralTag}}) {
    const Json* value = json.Find(key);
    if (value == nullptr) continue;
    GrammarSource source;
    source.kind = kind;
    source.text = value->is_string() ? value->string() : value->Dump();
    return source;
  }
  return Invalid("grammar: %grammar wants one of regex, choice, grammar and structural_tag");
}

}  // namespace

Status CompileBnf(const std::string& text, const GrammarOptions& options, WorkBudget* budget,
                  GrammarProgram* program) {
  DI_ASSIGN(BnfGrammar grammar, ParseBnf(text, options.depth_max));
  return BnfCompiler(std::move(grammar), options, budget, program).Compile();
}

}  // namespace deepinfer
