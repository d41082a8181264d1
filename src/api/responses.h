// POST /v1/responses, OpenAI's dialect of items. Pure functions but for the store, which the
// context names.
#pragma once

#include <vector>

#include "api/dialect.h"
#include "api/response_store.h"

namespace deepinfer {

Result<DialectCall> ParseResponses(const Json& body, const DialectContext& context);

// {"object": "response.input_tokens", "input_tokens": n} of the prompt that the body would give.
Result<Json> CountResponseTokens(const Json& body, const DialectContext& context);

// `input` of a request as items that carry ids made from `response_id`.
Result<std::vector<Json>> ReadInputItems(const Json& body, std::string_view response_id);

// All items, oldest first, as messages of a chat request. The last `input_count` of them are the
// request's own: errors name those as input[i].
Result<Json> ChatMessagesOfItems(const std::vector<const Json*>& items, size_t input_count);

}  // namespace deepinfer
