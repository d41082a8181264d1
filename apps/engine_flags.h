// The flags of EngineConfig, spelled as vLLM users know them, shared by every subcommand that runs
// a model. Values are checked by the engine itself.
#pragma once

#include "apps/command_line.h"
#include "deepinfer/config.h"

namespace deepinfer {

// Binds every field of `config`, which must outlive line->Parse.
void AddEngineFlags(CommandLine* line, EngineConfig* config);

}  // namespace deepinfer
