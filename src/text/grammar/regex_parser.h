// ECMA-262 regular expressions (with the u flag) into expressions. What is not regular
// (back-references) or looks around (\b, lookahead) is an error that names it.
// Pure function, any thread; depth and size are bounded.
#pragma once

#include <string_view>

#include "deepinfer/status.h"
#include "text/grammar/syntax_tree.h"
#include "text/grammar/work_budget.h"

namespace deepinfer {

Result<SyntaxId> ParseRegex(std::string_view pattern, int depth_max, WorkBudget* budget,
                            SyntaxTree* tree);

}  // namespace deepinfer
