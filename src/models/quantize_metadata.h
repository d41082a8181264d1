// GGUF metadata of a model: written from a configuration and tokenizer, or copied from another
// GGUF file. Plain functions, one thread.
#pragma once

#include "deepinfer/status.h"
#include "models/checkpoint.h"
#include "models/quantize_types.h"
#include "tensor/gguf_writer.h"

namespace deepinfer {

// general.* and <architecture>.* of `config`.
void WriteConfigMetadata(const ModelConfig& config, const QuantizationType& type,
                         GgufWriter* writer);

// tokenizer.ggml.*; refuses a tokenizer that GGUF has no name for, saying which part.
// The vocabulary is padded to `vocab` entries, which readers compare with the embedding.
Status WriteTokenizerMetadata(const TokenizerSpec& spec, int vocab,
                              const std::string& chat_template, GgufWriter* writer);

// Everything but what describes the old file itself (types, alignment, parts).
void CopyMetadata(const GgufMetadata& source, const QuantizationType& type, GgufWriter* writer);

}  // namespace deepinfer
