// Free text in which certain openings begin a part that keeps to a JSON Schema: how tool calls are
// enforced while the model may also just talk. Pure function, any thread.
#pragma once

#include <string>

#include "deepinfer/status.h"
#include "text/grammar/grammar_program.h"
#include "text/grammar/work_budget.h"

namespace deepinfer {

// `text`: {"structures": [{"begin": TEXT, "schema": SCHEMA, "end": TEXT}, ...],
//          "triggers": [TEXT, ...], "at_least_one": BOOL, "stop_after_first": BOOL}.
// Once the text has spelled a trigger, it must go on as one of the structures that begin with it.
// Without triggers each begin is its own. Sets program->start.
Status CompileStructuralTag(const std::string& text, const GrammarOptions& options,
                            WorkBudget* budget, GrammarProgram* program);

}  // namespace deepinfer
