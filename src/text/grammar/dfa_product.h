// Several automata run side by side: intersections, complements and classifications of texts.
// Pure function, any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "deepinfer/status.h"
#include "text/grammar/code_point_dfa.h"
#include "text/grammar/work_budget.h"

namespace deepinfer {

// For the states of all parts (0 where a part is dead), the label of the combined state: 0 does
// not accept; kDropState removes the state and all that needs it. Called once per state.
inline constexpr uint32_t kDropState = UINT32_MAX;
using ProductLabel = std::function<uint32_t(std::span<const uint32_t> states)>;

Result<CodePointDfa> BuildProduct(std::span<const CodePointDfa* const> parts,
                                  const ProductLabel& label, size_t states_max, WorkBudget* budget);

}  // namespace deepinfer
