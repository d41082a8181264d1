// What a request says its answer must look like, in the spelling of every dialect, as one
// GrammarSource. Only shapes are checked here; whether a grammar can be enforced is for its
// compilation to say. Pure functions, any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "deepinfer/request.h"
#include "deepinfer/status.h"

namespace deepinfer {

// response_format (OpenAI), structured_outputs and guided_* (vLLM), grammar and json_schema
// (llama.cpp) of `body`; more than one of them is an error.
Result<std::optional<GrammarSource>> ReadGrammar(const Json& body);

// A {"type": "text" | "json_object" | "json_schema" | "regex" | "grammar" | "structural_tag", ...}
// that stands at `param`.
Result<std::optional<GrammarSource>> ReadFormat(const Json& format, const std::string& param);

// Reads `format` into `grammar` unless the request has named another one.
Status AddFormat(const Json& format, const std::string& param,
                 std::optional<GrammarSource>* grammar);

// True for a field that ReadGrammar reads.
bool IsGrammarField(std::string_view key);

}  // namespace deepinfer
