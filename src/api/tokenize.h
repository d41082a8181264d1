// POST /tokenize and /detokenize: the key sets of vLLM (prompt or messages) and of llama.cpp
// (content), answered with the members of both. Pure functions, any thread.
#pragma once

#include "api/dialect.h"
#include "base/json.h"
#include "deepinfer/status.h"

namespace deepinfer {

Result<Json> Tokenize(const Json& body, const DialectContext& context);
Result<Json> Detokenize(const Json& body, const DialectContext& context);

}  // namespace deepinfer
