// The grammar of a whole answer: reasoning where the model reasons, then what the request's format
// and its tools allow, in the way that the model's family writes calls. Pure function, any thread.
#pragma once

#include <optional>

#include "api/output_plan.h"
#include "api/tools_json.h"
#include "deepinfer/request.h"
#include "deepinfer/status.h"

namespace deepinfer {

// `grammar`: what the request asks of the content, or nothing; becomes that of the answer, or stays
// empty where nothing is to be kept. Errors name a tool whose arguments cannot be held to their
// schema in this family's spelling.
Status ConstrainOutput(const OutputPlan& output, const ToolSet& tools,
                       std::optional<GrammarSource>* grammar);

}  // namespace deepinfer
