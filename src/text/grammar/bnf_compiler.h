// Rules to the tables of a program: rules without recursion dissolve into those that use them, so
// a regular grammar becomes one automaton. Pure function, any thread.
#pragma once

#include <string>

#include "deepinfer/status.h"
#include "text/grammar/grammar_program.h"
#include "text/grammar/work_budget.h"

namespace deepinfer {

// Sets program->start. Refused by name: left recursion, and bounded repetition of what may be
// empty.
Status CompileBnf(const std::string& text, const GrammarOptions& options, WorkBudget* budget,
                  GrammarProgram* program);

}  // namespace deepinfer
