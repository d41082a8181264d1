// Views for clients of llama.cpp's server: POST /completion, GET /props and /slots. Pure functions,
// any thread.
#pragma once

#include "api/dialect.h"

namespace deepinfer {

Result<DialectCall> ParseLlamaCompletion(const Json& body, const DialectContext& context);

struct SlotCounts {
  int64_t total = 0;
  int64_t running = 0;
};
Json LlamaProps(const DialectContext& context, const SlotCounts& slots);
// One object a slot; the first `running` are at work.
Json LlamaSlots(const DialectContext& context, const SlotCounts& slots);

}  // namespace deepinfer
