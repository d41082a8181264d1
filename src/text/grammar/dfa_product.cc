#include "text/grammar/dfa_product.h"

#include <map>
#include <vector>

#include "base/format.h"

namespace deepinfer {

namespace {

// The common refinement of the alphabets; `classes` gets for each new class those of the parts.
std::vector<CodePointDfa::ClassStart> JoinAlphabets(std::span<const CodePointDfa* const> parts,
                                                    std::vector<std::vector<uint32_t>>* classes) {
  std::map<char32_t, int> firsts;
  for (const CodePointDfa* part : parts) {
    for (const CodePointDfa::ClassStart& start : part->class_starts()) firsts[start.first] = 0;
  }
  std::map<std::vector<uint32_t>, uint32_t> ids;
  std::vector<CodePointDfa::ClassStart> starts;
  for (const auto& [first, unused] : firsts) {
    std::vector<uint32_t> tuple;
    for (const CodePointDfa* part : parts) tuple.push_back(part->ClassOf(first));
    const auto [entry, is_new] = ids.try_emplace(tuple, static_cast<uint32_t>(ids.size()));
    if (is_new) classes->push_back(tuple);
    if (starts.empty() || starts.back().class_id != entry->second) {
      starts.push_back({first, entry->second});
    }
  }
  return starts;
}

}  // namespace

Result<CodePointDfa> BuildProduct(std::span<const CodePointDfa* const> parts,
                                  const ProductLabel& label, size_t states_max,
                                  WorkBudget* budget) {
  size_t borders = 0;
  for (const CodePointDfa* part : parts) borders += part->class_starts().size();
  if (!budget->Spend(static_cast<int64_t>(borders * parts.size() / 8))) return WorkBudget::Error();
  std::vector<std::vector<uint32_t>> classes;
  CodePointDfa dfa(JoinAlphabets(parts, &classes));
  dfa.AddState();
  std::map<std::vector<uint32_t>, uint32_t> ids;
  std::vector<std::vector<uint32_t>> tuples;
  const auto intern = [&](const std::vector<uint32_t>& tuple) {
    const auto [entry, is_new] = ids.try_emplace(tuple, CodePointDfa::kDead);
    if (!is_new) return entry->second;
    const uint32_t value = label(tuple);
    if (value == kDropState && !tuples.empty()) return CodePointDfa::kDead;
    entry->second = dfa.AddState();
    dfa.SetLabel(entry->second, value == kDropState ? 0 : value);
    tuples.push_back(tuple);
    return entry->second;
  };
  intern(std::vector<uint32_t>(parts.size(), CodePointDfa::kStart));
  std::vector<uint32_t> next(parts.size());
  for (size_t at = 0; at < tuples.size(); ++at) {
    const std::vector<uint32_t> tuple = tuples[at];
    if (!budget->Spend(static_cast<int64_t>(classes.size() * (1 + parts.size())))) {
      return WorkBudget::Error();
    }
    for (uint32_t c = 0; c < classes.size(); ++c) {
      for (size_t i = 0; i < parts.size(); ++i) {
        next[i] = parts[i]->NextOfClass(tuple[i], classes[c][i]);
      }
      dfa.SetNext(static_cast<uint32_t>(at + 1), c, intern(next));
    }
    if (tuples.size() > states_max || tuples.size() * classes.size() > CodePointDfa::kTableMax) {
      return Invalid(
          Format("the combined patterns need more than {} automaton states: make them "
                 "simpler",
                 states_max));
    }
  }
  dfa.Finish();
  return dfa;
}

}  // namespace deepinfer
