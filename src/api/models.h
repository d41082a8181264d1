// The list of served models, as OpenAI writes it with vLLM's members. Pure functions, any thread.
#pragma once

#include <string_view>

#include "api/dialect.h"
#include "base/json.h"
#include "deepinfer/status.h"

namespace deepinfer {

// GET /v1/models.
Json ModelList(const DialectContext& context);
// GET /v1/models/{name}; kNotFound for a name that is not served.
Result<Json> ModelCard(const DialectContext& context, std::string_view name);

// The same for clients of Anthropic's API.
Json AnthropicModelList(const DialectContext& context);
Result<Json> AnthropicModelCard(const DialectContext& context, std::string_view name);

}  // namespace deepinfer
