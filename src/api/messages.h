// POST /v1/messages and /v1/messages/count_tokens, Anthropic's dialect. Pure functions.
#pragma once

#include "api/dialect.h"

namespace deepinfer {

Result<DialectCall> ParseMessages(const Json& body, const DialectContext& context);
// {"input_tokens": n} of the prompt that the same body would give.
Result<Json> CountMessageTokens(const Json& body, const DialectContext& context);

// "messages" and "system" of `body` as messages of a chat request, with every block checked.
Result<Json> ChatMessagesOf(const Json& body);

}  // namespace deepinfer
