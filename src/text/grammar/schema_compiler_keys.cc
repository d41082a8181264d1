// The keys of objects: one automaton for each kind of object that tells which value a key has.
#include <algorithm>
#include <unordered_map>

#include "base/format.h"
#include "text/grammar/dfa_builder.h"
#include "text/grammar/dfa_product.h"
#include "text/grammar/regex_parser.h"
#include "text/grammar/schema_compiler.h"

namespace deepinfer {

namespace {

constexpr size_t kKeyStatesMax = 50'000;
constexpr size_t kReachMax = 4'000'000;  // words: 32 MB
constexpr const char* kNoKey = "\xFF";   // is no key: not UTF-8

}  // namespace

struct SchemaCompiler::KeyParts {
  std::vector<std::string> tracked;
  std::unordered_map<std::string, size_t> patterns;  // place in pattern_ids
  std::vector<uint32_t> pattern_ids;                 // automata
  std::vector<CodePointDfa> names;                   // any of them accepts; none: no rule for names
  bool named = false;
};

Status SchemaCompiler::CollectKeys(const SchemaBranch& branch, KeyParts* parts) {
  std::set<std::string> tracked = branch.required;
  for (const auto& extra : branch.property_extras) tracked.insert(extra.first);
  for (const ObjectGroup& group : branch.objects) {
    if (group.properties != nullptr) {
      for (const auto& member : group.properties->members()) tracked.insert(member.first);
    }
    if (group.patterns == nullptr) continue;
    for (const auto& member : group.patterns->members()) {
      const std::string& pattern = member.first;
      if (!parts->patterns.try_emplace(pattern, parts->pattern_ids.size()).second) continue;
      StringPattern key_pattern;
      key_pattern.regex = pattern;
      key_pattern.schema = group.patterns;
      key_pattern.keyword = pattern.c_str();
      DI_ASSIGN(const uint32_t id, AutomatonOf(key_pattern));
      parts->pattern_ids.push_back(id);
    }
  }
  parts->tracked.assign(tracked.begin(), tracked.end());
  if (branch.names.empty()) return {};
  parts->named = true;
  DI_ASSIGN(const std::vector<SchemaBranch> ways, expander_->Expand(branch.names));
  for (const SchemaBranch& way : ways) {
    if ((way.types & JsonTypes::kString) == 0) continue;
    if (way.string.allowed) {
      std::vector<std::string> texts;
      DI_TRY(KeepAllowed(way, &texts));
      DI_ASSIGN(CodePointDfa choice, CodePointDfa::OfTexts(texts));
      parts->names.push_back(std::move(choice));
      continue;
    }
    DI_ASSIGN(CodePointDfa automaton, NamesAutomaton(way.string));
    parts->names.push_back(std::move(automaton));
  }
  return {};
}

// Keys are not counted while they are written, so lengths become part of the automaton.
Result<CodePointDfa> SchemaCompiler::NamesAutomaton(const StringConstraints& string) {
  DI_ASSIGN(const uint32_t id, AutomatonOf(string));
  if (string.length_min == 0 && string.length_max == kUnbounded) {
    CodePointDfa copy = program_->automata[id];
    return copy;
  }
  SyntaxTree tree;
  const SyntaxId any = tree.Set(CodePointSet::All());
  DI_ASSIGN(const CodePointDfa lengths,
            BuildDfa(tree, tree.Repeat(any, string.length_min, string.length_max),
                     {.states_max = options_.expression_states_max}, budget_));
  const CodePointDfa* parts[] = {&program_->automata[id], &lengths};
  return BuildProduct(
      parts,
      [&](std::span<const uint32_t> states) -> uint32_t {
        return parts[0]->label(states[0]) != 0 && parts[1]->label(states[1]) != 0 ? 1 : 0;
      },
      kKeyStatesMax, budget_);
}

Status SchemaCompiler::PropertyNode(const SchemaBranch& branch, const std::string& key,
                                    const std::vector<bool>& matched, const KeyParts& parts,
                                    uint32_t* node) {
  const auto matches = [&](const std::string& pattern) {
    const auto at = parts.patterns.find(pattern);
    return at != parts.patterns.end() && matched[at->second];
  };
  DI_ASSIGN(*node, Intern(expander_->OfProperty(branch, key, matches)));
  return {};
}

Status SchemaCompiler::BuildKeyAutomaton(const SchemaBranch& branch, KeyParts* parts,
                                         ObjectPlan* plan) {
  DI_ASSIGN(const CodePointDfa tracked, CodePointDfa::OfTexts(parts->tracked));
  std::vector<const CodePointDfa*> automata = {&tracked};
  for (const uint32_t id : parts->pattern_ids) automata.push_back(&program_->automata[id]);
  const size_t names_begin = automata.size();
  for (const CodePointDfa& names : parts->names) automata.push_back(&names);
  Status status;
  std::map<std::pair<uint32_t, std::vector<bool>>, uint32_t> labels;
  const auto label = [&](std::span<const uint32_t> states) -> uint32_t {
    bool named = !parts->named;
    for (size_t i = names_begin; i < states.size(); ++i) {
      named = named || automata[i]->label(states[i]) != 0;
    }
    if (!named || !status.ok()) return 0;
    std::vector<bool> matched;
    for (size_t i = 1; i < names_begin; ++i) {
      matched.push_back(automata[i]->label(states[i]) != 0);
    }
    const uint32_t key = tracked.label(states[0]);
    const auto [entry, is_new] = labels.try_emplace({key, matched}, 0);
    if (is_new) {
      uint32_t node = 0;
      status =
          PropertyNode(branch, key == 0 ? kNoKey : parts->tracked[key - 1], matched, *parts, &node);
      plan->labels.push_back({key == 0 ? ObjectPlan::kUntracked : key - 1, node});
      entry->second = static_cast<uint32_t>(plan->labels.size());
    }
    return entry->second;
  };
  DI_ASSIGN(CodePointDfa automaton, BuildProduct(automata, label, kKeyStatesMax, budget_));
  DI_TRY(std::move(status));
  DI_ASSIGN(plan->automaton, AddAutomaton(std::move(automaton)));
  return {};
}

Status SchemaCompiler::AddObject(const SchemaBranch& branch, uint32_t node) {
  KeyParts parts;
  DI_TRY(CollectKeys(branch, &parts));
  ObjectPlan plan;
  plan.num_tracked = static_cast<uint32_t>(parts.tracked.size());
  plan.words = (plan.num_tracked + 63) / 64;
  plan.required.assign(plan.words, 0);
  plan.properties_min = branch.properties_min;
  plan.properties_max = branch.properties_max;
  for (size_t i = 0; i < parts.tracked.size(); ++i) {
    if (branch.required.contains(parts.tracked[i])) {
      plan.required[i / 64] |= uint64_t{1} << (i % 64);
    }
  }
  DI_TRY(BuildKeyAutomaton(branch, &parts, &plan));
  const size_t cells = size_t{program_->automata[plan.automaton].num_states()} * plan.words;
  if (cells > kReachMax) {
    return Invalid(Format("JSON Schema: an object with {} named properties is too large",
                          plan.num_tracked))
        .WithParam("properties");
  }
  // What the required keys bring along needs no counting.
  if (branch.required.size() >= plan.properties_min) plan.properties_min = 0;
  program_->objects.push_back(std::move(plan));
  AddAlternative(node, JsonTypes::kObject, static_cast<uint32_t>(program_->objects.size() - 1));
  return {};
}

void SchemaCompiler::PruneObject(ObjectPlan* plan) const {
  CodePointDfa& automaton = program_->automata[plan->automaton];
  bool changed = false;
  for (uint32_t state = 1; state < automaton.num_states(); ++state) {
    const uint32_t label = automaton.label(state);
    if (label == 0 || satisfiable_[plan->labels[label - 1].value - first_node_] != 0) continue;
    automaton.SetLabel(state, 0);
    changed = true;
  }
  if (changed) automaton.Finish();
  ComputeReach(plan);
}

void SchemaCompiler::ComputeReach(ObjectPlan* plan) const {
  const CodePointDfa& automaton = program_->automata[plan->automaton];
  const uint32_t n = automaton.num_states();
  plan->reach.assign(size_t{n} * plan->words, 0);
  plan->reach_other.assign(n, 0);
  std::vector<std::vector<uint32_t>> from(n);
  std::vector<uint32_t> work;
  for (uint32_t state = n; state-- > 1;) {
    for (uint32_t c = 0; c < automaton.num_classes(); ++c) {
      const uint32_t target = automaton.NextOfClass(state, c);
      if (target != CodePointDfa::kDead && (from[target].empty() || from[target].back() != state)) {
        from[target].push_back(state);
      }
    }
    if (automaton.label(state) == 0) continue;
    const uint32_t tracked = plan->labels[automaton.label(state) - 1].tracked;
    if (tracked == ObjectPlan::kUntracked) {
      plan->reach_other[state] = 1;
    } else {
      plan->reach[size_t{state} * plan->words + tracked / 64] |= uint64_t{1} << (tracked % 64);
    }
    work.push_back(state);
  }
  // Backwards until nothing is added; a tree of keys is done in one pass.
  while (!work.empty()) {
    const uint32_t state = work.back();
    work.pop_back();
    for (const uint32_t before : from[state]) {
      bool added = plan->reach_other[state] != 0 && plan->reach_other[before] == 0;
      if (added) plan->reach_other[before] = 1;
      for (uint32_t w = 0; w < plan->words; ++w) {
        uint64_t* to = &plan->reach[size_t{before} * plan->words + w];
        const uint64_t bits = plan->reach[size_t{state} * plan->words + w];
        if ((bits & ~*to) == 0) continue;
        *to |= bits;
        added = true;
      }
      if (added) work.push_back(before);
    }
  }
  plan->has_other = plan->reach_other[CodePointDfa::kStart] != 0;
  plan->always_other = std::all_of(plan->reach_other.begin() + 1, plan->reach_other.end(),
                                   [](uint8_t other) { return other != 0; });
}

}  // namespace deepinfer
