// From an expression to its deterministic automaton: Thompson's construction, then subsets.
// Pure function, any thread; bounded by `states_max` and the budget.
#pragma once

#include <cstddef>

#include "deepinfer/status.h"
#include "text/grammar/code_point_dfa.h"
#include "text/grammar/syntax_tree.h"
#include "text/grammar/work_budget.h"

namespace deepinfer {

struct DfaBuildOptions {
  // kWhole: the text matches the expression. kSearch: some part of it does, as JSON Schema's
  // `pattern` wants; then ^ and $ tie the part to the ends.
  enum class Match { kWhole, kSearch } match = Match::kWhole;
  size_t states_max = 20'000;  // GrammarOptions::expression_states_max
};

// An automaton that accepts nothing is a value here: its start has no way on.
Result<CodePointDfa> BuildDfa(const SyntaxTree& tree, SyntaxId root, const DfaBuildOptions& options,
                              WorkBudget* budget);

}  // namespace deepinfer
