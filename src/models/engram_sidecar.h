// Makes engram.json, the token map and hash constants of Engram memory, for a checkpoint that came
// without it. Needs config.json and the tokenizer; no weight is read. Plain function, any thread.
#pragma once

#include <string>

#include "deepinfer/status.h"
#include "text/engram_map.h"

namespace deepinfer {

// From the checkpoint in `directory`. An error says where the result contradicts config.json (the
// number of keys, the rows of a table): then tokenizer and weights do not belong together.
Result<EngramSidecar> EngramSidecarOf(const std::string& directory);

// The same, written to engram.json there; an existing file is replaced. Returns its path.
Result<std::string> WriteEngramSidecar(const std::string& directory);

}  // namespace deepinfer
