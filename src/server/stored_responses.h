// GET, DELETE and POST below /v1/responses/: what the store keeps. Safe on any thread.
#pragma once

#include "api/response_store.h"
#include "net/http_types.h"

namespace deepinfer {

// {id}, {id}/input_items, {id}/cancel. `store` nullptr: none is kept.
Result<Json> AnswerStoredResponse(const HttpRequest& request, ResponseStore* store);

}  // namespace deepinfer
