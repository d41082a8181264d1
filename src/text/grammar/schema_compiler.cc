#include "text/grammar/schema_compiler.h"

#include <algorithm>

#include "base/format.h"
#include "text/grammar/dfa_builder.h"
#include "text/grammar/dfa_product.h"
#include "text/grammar/regex_parser.h"
#include "text/unicode.h"

namespace deepinfer {

SchemaCompiler::SchemaCompiler(const GrammarOptions& options, WorkBudget* budget,
                               GrammarProgram* program)
    : options_(options), budget_(budget), program_(program) {}

Result<uint32_t> SchemaCompiler::Compile(Json schema) {
  if (!schema.is_object() && !schema.is_bool()) {
    return Invalid("JSON Schema: a schema is an object or true or false");
  }
  document_ = std::make_unique<SchemaDocument>(std::move(schema));
  expander_ = std::make_unique<SchemaExpander>(document_.get(), options_, budget_);
  if (program_->automata.empty()) program_->automata.push_back(CodePointDfa::Anything());
  first_node_ = static_cast<uint32_t>(program_->values.size());
  first_object_ = static_cast<uint32_t>(program_->objects.size());
  first_array_ = static_cast<uint32_t>(program_->arrays.size());
  DI_ASSIGN(const uint32_t root, Intern({{&document_->root(), false}}));
  for (size_t i = 0; i < pending_.size(); ++i) {
    DI_TRY(CompileNode(first_node_ + static_cast<uint32_t>(i)));
  }
  FindSatisfiable();
  if (satisfiable_[root - first_node_] == 0) {
    return Invalid("JSON Schema: nothing satisfies it").WithParam("#");
  }
  Prune();
  return root;
}

Result<uint32_t> SchemaCompiler::Intern(std::vector<AppliedSchema> all) {
  std::erase_if(all, [](const AppliedSchema& applied) {
    const Json& schema = *applied.schema;
    return (schema.is_bool() && *schema.AsBool() != applied.negated) ||
           (schema.is_object() && schema.members().empty() && !applied.negated);
  });
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  const auto next = first_node_ + static_cast<uint32_t>(pending_.size());
  const auto [entry, is_new] = nodes_.try_emplace(std::move(all), next);
  if (is_new) {
    if (program_->values.size() >= options_.states_max) {
      return Invalid(
          Format("JSON Schema: it describes more than {} different values", options_.states_max));
    }
    pending_.push_back(entry->first);
    program_->values.emplace_back();
  }
  return entry->second;
}

Status SchemaCompiler::CompileNode(uint32_t node) {
  const std::vector<AppliedSchema> all = pending_[node - first_node_];
  DI_ASSIGN(const std::vector<SchemaBranch> branches, expander_->Expand(all));
  for (const SchemaBranch& branch : branches) DI_TRY(AddAlternatives(branch, node));
  return {};
}

void SchemaCompiler::AddAlternative(uint32_t node, uint8_t type, uint32_t plan) {
  ValueNode& value = program_->values[node];
  for (const ValueAlternative& known : value.alternatives) {
    if (known.type == type && known.plan == plan) return;
  }
  value.alternatives.push_back({type, plan});
  value.types |= type;
}

Status SchemaCompiler::AddAlternatives(const SchemaBranch& branch, uint32_t node) {
  using T = JsonTypes;
  for (const uint8_t literal : {T::kNull, T::kFalse, T::kTrue}) {
    if ((branch.types & literal) != 0) AddAlternative(node, literal, 0);
  }
  if ((branch.types & T::kNumber) != 0) DI_TRY(AddNumber(branch, node));
  if ((branch.types & T::kString) != 0) DI_TRY(AddString(branch, node));
  if ((branch.types & T::kArray) != 0) DI_TRY(AddArray(branch, node));
  if ((branch.types & T::kObject) != 0) DI_TRY(AddObject(branch, node));
  return {};
}

Result<uint32_t> SchemaCompiler::AddAutomaton(CodePointDfa automaton) {
  const size_t table = size_t{automaton.num_states()} * automaton.num_classes();
  if (!budget_->Spend(static_cast<int64_t>(table / 16))) return WorkBudget::Error();
  program_->automata.push_back(std::move(automaton));
  return static_cast<uint32_t>(program_->automata.size() - 1);
}

Result<uint32_t> SchemaCompiler::AutomatonOf(const StringPattern& pattern) {
  const auto [entry, is_new] = by_regex_.try_emplace({pattern.regex, pattern.whole}, 0);
  if (!is_new) return entry->second;
  SyntaxTree tree;
  const Result<SyntaxId> root = ParseRegex(pattern.regex, options_.depth_max, budget_, &tree);
  if (!root.ok()) {
    return document_->Unsupported(*pattern.schema, pattern.keyword, root.status().message());
  }
  DfaBuildOptions build;
  build.states_max = options_.expression_states_max;
  build.match = pattern.whole ? DfaBuildOptions::Match::kWhole : DfaBuildOptions::Match::kSearch;
  Result<CodePointDfa> automaton = BuildDfa(tree, *root, build, budget_);
  if (!automaton.ok()) {
    return document_->Unsupported(*pattern.schema, pattern.keyword, automaton.status().message());
  }
  automaton->Minimize();  // fewer states share more masks
  DI_ASSIGN(entry->second, AddAutomaton(std::move(*automaton)));
  return entry->second;
}

Result<uint32_t> SchemaCompiler::AutomatonOf(const StringConstraints& string) {
  std::vector<uint32_t> ids;
  std::vector<bool> negated;
  for (const StringPattern& pattern : string.patterns) {
    DI_ASSIGN(const uint32_t id, AutomatonOf(pattern));
    ids.push_back(id);
    negated.push_back(pattern.negated);
  }
  if (!string.excluded.empty()) {
    DI_ASSIGN(CodePointDfa excluded, CodePointDfa::OfTexts(string.excluded));
    DI_ASSIGN(const uint32_t id, AddAutomaton(std::move(excluded)));
    ids.push_back(id);
    negated.push_back(true);
  }
  if (ids.empty()) return uint32_t{0};
  if (ids.size() == 1 && !negated[0]) return ids[0];
  std::vector<const CodePointDfa*> parts;
  for (const uint32_t id : ids) parts.push_back(&program_->automata[id]);
  const auto label = [&](std::span<const uint32_t> states) -> uint32_t {
    for (size_t i = 0; i < states.size(); ++i) {
      if ((parts[i]->label(states[i]) != 0) == negated[i]) return 0;
    }
    return 1;
  };
  DI_ASSIGN(CodePointDfa product, BuildProduct(parts, label, 20'000, budget_));
  return AddAutomaton(std::move(product));
}

// Of an enumeration, the strings that the other constraints let through.
Status SchemaCompiler::KeepAllowed(const SchemaBranch& branch, std::vector<std::string>* texts) {
  const StringConstraints& string = branch.string;
  for (const std::string& text : *string.allowed) {
    uint32_t length = 0;
    int bytes = 0;
    for (size_t at = 0; at < text.size(); at += static_cast<size_t>(bytes), ++length) {
      DecodeUtf8(text.data() + at, &bytes);
    }
    bool keep =
        length >= string.length_min && length <= string.length_max &&
        std::find(string.excluded.begin(), string.excluded.end(), text) == string.excluded.end();
    for (const StringPattern& pattern : string.patterns) {
      DI_ASSIGN(const uint32_t id, AutomatonOf(pattern));
      const CodePointDfa& automaton = program_->automata[id];
      uint32_t state = CodePointDfa::kStart;
      for (size_t at = 0; at < text.size(); at += static_cast<size_t>(bytes)) {
        state = automaton.Next(state, DecodeUtf8(text.data() + at, &bytes));
      }
      keep = keep && (automaton.label(state) != 0) != pattern.negated;
    }
    if (keep) texts->push_back(text);
  }
  return {};
}

Status SchemaCompiler::AddString(const SchemaBranch& branch, uint32_t node) {
  StringPlan plan;
  if (branch.string.allowed) {
    std::vector<std::string> texts;
    DI_TRY(KeepAllowed(branch, &texts));
    if (texts.empty()) return {};
    DI_ASSIGN(CodePointDfa choice, CodePointDfa::OfTexts(texts));
    DI_ASSIGN(plan.automaton, AddAutomaton(std::move(choice)));
  } else {
    DI_ASSIGN(plan.automaton, AutomatonOf(branch.string));
    plan.length_min = branch.string.length_min;
    plan.length_max = branch.string.length_max;
  }
  const CodePointDfa& automaton = program_->automata[plan.automaton];
  const uint32_t shortest = automaton.shortest(CodePointDfa::kStart);
  const uint32_t longest = automaton.longest(CodePointDfa::kStart);
  if (shortest == CodePointDfa::kInfinite || shortest > plan.length_max ||
      longest < plan.length_min) {
    return {};
  }
  // Limits that the automaton keeps by itself cost nothing at run time.
  if (longest <= plan.length_max && longest != CodePointDfa::kInfinite) {
    plan.length_max = kUnbounded;
  }
  if (shortest >= plan.length_min) plan.length_min = 0;
  const auto id = static_cast<uint32_t>(program_->strings.size());
  plan.unlimited = id;
  if (plan.length_max != kUnbounded) {
    plan.unlimited = id + 1;
    program_->strings.push_back(plan);
    plan.length_max = kUnbounded;
  }
  program_->strings.push_back(plan);
  AddAlternative(node, JsonTypes::kString, id);
  return {};
}

Status SchemaCompiler::AddNumber(const SchemaBranch& branch, uint32_t node) {
  const auto spelling = options_.numbers == GrammarOptions::Numbers::kPlain
                            ? NumberRule::Spelling::kPlain
                            : NumberRule::Spelling::kAny;
  Result<NumberRule> rule = NumberRule::Create(branch.number, spelling);
  if (!rule.ok()) {
    return Invalid(Format("JSON Schema: the limits of a number cannot be enforced: {}",
                          rule.status().message()))
        .WithParam("#");
  }
  if (rule->kind() == NumberRule::Kind::kNothing) return {};
  NumberPlan plan{std::move(*rule), 0};
  if (plan.rule.kind() == NumberRule::Kind::kListed) {
    DI_ASSIGN(CodePointDfa listed, CodePointDfa::OfTexts(plan.rule.texts()));
    DI_ASSIGN(plan.automaton, AddAutomaton(std::move(listed)));
  }
  program_->numbers.push_back(std::move(plan));
  AddAlternative(node, JsonTypes::kNumber, static_cast<uint32_t>(program_->numbers.size() - 1));
  return {};
}

Status SchemaCompiler::AddArray(const SchemaBranch& branch, uint32_t node) {
  if (branch.unique_items && branch.items_max > 1) {
    return document_->Unsupported(*branch.unique_schema, "uniqueItems",
                                  "a generator would have to compare the items");
  }
  if (branch.counts.size() > 1) {
    return Invalid("JSON Schema: two \"contains\" for one array cannot be enforced together")
        .WithParam("contains");
  }
  ArrayPlan plan;
  plan.items_min = branch.items_min;
  plan.items_max = branch.items_max;
  size_t prefix = 0;
  for (const ArrayGroup& group : branch.arrays) prefix = std::max(prefix, group.prefix.size());
  for (const auto& extra : branch.item_extras) prefix = std::max(prefix, size_t{extra.first} + 1);
  if (!branch.counts.empty()) prefix = std::max(prefix, size_t{branch.counts[0].start});
  if (prefix > options_.states_max) return Invalid("JSON Schema: too many prefixItems");
  const ItemCount* count = branch.counts.empty() ? nullptr : branch.counts.data();
  plan.counted = count != nullptr;
  if (count != nullptr) {
    plan.count_min = count->min;
    plan.count_max = count->max;
  }
  for (uint32_t i = 0; i <= prefix; ++i) {
    const std::vector<AppliedSchema> all = expander_->OfItem(branch, i);
    DI_ASSIGN(const uint32_t value, Intern(all));
    uint32_t match = 0;
    uint32_t miss = 0;
    if (count != nullptr) {
      std::vector<AppliedSchema> with = all;
      with.push_back(i < count->start ? AppliedSchema{&SchemaDocument::False(), false}
                                      : count->what);
      DI_ASSIGN(match, Intern(std::move(with)));
      miss = value;
      if (count->max != kUnbounded && i >= count->start) {
        std::vector<AppliedSchema> without = all;
        without.push_back({count->what.schema, !count->what.negated});
        DI_ASSIGN(miss, Intern(std::move(without)));
      }
    }
    if (i == prefix) {
      plan.rest = value;
      plan.rest_match = match;
      plan.rest_miss = miss;
    } else {
      plan.prefix.push_back(value);
      plan.prefix_match.push_back(match);
      plan.prefix_miss.push_back(miss);
    }
  }
  program_->arrays.push_back(std::move(plan));
  AddAlternative(node, JsonTypes::kArray, static_cast<uint32_t>(program_->arrays.size() - 1));
  return {};
}

// What some value satisfies: the least fixed point, so that endless recursion does not count.
void SchemaCompiler::FindSatisfiable() {
  const size_t n = pending_.size();
  satisfiable_.assign(n, 0);
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = n; i-- > 0;) {
      if (satisfiable_[i] != 0) continue;
      const ValueNode& value = program_->values[first_node_ + i];
      if (std::any_of(
              value.alternatives.begin(), value.alternatives.end(),
              [&](const ValueAlternative& alternative) { return Satisfiable(alternative); })) {
        satisfiable_[i] = 1;
        changed = true;
      }
    }
  }
}

bool SchemaCompiler::Satisfiable(const ValueAlternative& alternative) const {
  const auto holds = [&](uint32_t node) { return satisfiable_[node - first_node_] != 0; };
  if (alternative.type == JsonTypes::kArray) {
    const ArrayPlan& plan = program_->arrays[alternative.plan];
    uint32_t matches = 0;
    for (uint32_t i = 0; i < plan.items_min; ++i) {
      const bool in_prefix = i < plan.prefix.size();
      if (!in_prefix && plan.counted && holds(plan.rest_match)) matches = plan.count_min;
      if (!holds(in_prefix ? plan.prefix[i] : plan.rest)) return false;
      if (in_prefix && plan.counted && holds(plan.prefix_match[i])) ++matches;
      if (!in_prefix) break;  // the following ones are the same
    }
    return !plan.counted || matches >= plan.count_min || holds(plan.rest_match);
  }
  if (alternative.type != JsonTypes::kObject) return true;
  const ObjectPlan& plan = program_->objects[alternative.plan];
  uint32_t possible = 0;
  uint64_t required = 0;
  bool other = false;
  for (const ObjectPlan::KeyLabel& label : plan.labels) {
    if (!holds(label.value)) continue;
    if (label.tracked == ObjectPlan::kUntracked) {
      other = true;
      continue;
    }
    ++possible;
    if ((plan.required[label.tracked / 64] >> (label.tracked % 64) & 1) != 0) ++required;
  }
  uint64_t wanted = 0;
  for (const uint64_t word : plan.required) {
    wanted += static_cast<uint64_t>(__builtin_popcountll(word));
  }
  return required == wanted && (other || possible >= plan.properties_min);
}

// Takes away what no value satisfies, so that the machine never enters it.
void SchemaCompiler::Prune() {
  for (size_t i = 0; i < pending_.size(); ++i) {
    ValueNode& value = program_->values[first_node_ + i];
    std::erase_if(value.alternatives,
                  [&](const ValueAlternative& alternative) { return !Satisfiable(alternative); });
    value.types = 0;
    for (const ValueAlternative& alternative : value.alternatives) value.types |= alternative.type;
  }
  for (size_t i = first_array_; i < program_->arrays.size(); ++i) PruneArray(&program_->arrays[i]);
  for (size_t i = first_object_; i < program_->objects.size(); ++i) {
    PruneObject(&program_->objects[i]);
  }
}

void SchemaCompiler::PruneArray(ArrayPlan* plan) const {
  const auto holds = [&](uint32_t node) { return satisfiable_[node - first_node_] != 0; };
  uint32_t possible = 0;
  while (possible < plan->prefix.size() && holds(plan->prefix[possible])) ++possible;
  if (possible < plan->prefix.size() || !holds(plan->rest)) {
    plan->items_max = std::min(plan->items_max, possible);
  }
}

}  // namespace deepinfer
