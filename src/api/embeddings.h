// POST /v1/embeddings: the state of a prompt's last token after the final norm, of length one. Pure
// functions, any thread.
#pragma once

#include "api/dialect.h"

namespace deepinfer {

Result<DialectCall> ParseEmbeddings(const Json& body, const DialectContext& context);

}  // namespace deepinfer
