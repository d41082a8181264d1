// Tokenizers of checkpoints as plain TokenizerSpecs: from tokenizer.json with tokenizer_config.json
// and from GGUF metadata. Whatever is not known (a model, a pre-tokenizer) is refused by name.
// Plain functions, any thread. The result is untrusted until Tokenizer::Create has checked it.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "deepinfer/status.h"
#include "tensor/gguf.h"
#include "text/tokenizer_spec.h"

namespace deepinfer {

// What the tokenizers package would build from the same text.
Result<TokenizerSpec> ParseTokenizerJson(std::string_view text);

// Adds what transformers takes from tokenizer_config.json: bos, eos and pad ids, and a leading
// BOS for the classes that add one.
Status ApplyTokenizerConfig(const Json& tokenizer_config, TokenizerSpec* spec);

// The template of tokenizer_config.json: a string, or the entry "default" of a list; else empty.
Result<std::string> ChatTemplateOf(const Json& tokenizer_config);

// tokenizer.ggml.*; false when the file says it has no tokenizer.
bool HasGgufTokenizer(const GgufMetadata& metadata);
Result<TokenizerSpec> TokenizerFromGguf(const GgufMetadata& metadata);

// The tokenizer.ggml.pre name whose pre-tokenizer steps equal those of `spec`; empty when none.
std::string GgufPreTokenizerName(const TokenizerSpec& spec);

}  // namespace deepinfer
