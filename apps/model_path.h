// Which files a --model argument means.
#pragma once

#include <string>

#include "deepinfer/status.h"

namespace deepinfer {

// A directory or file as it is; otherwise a name in the model cache; empty: the default model.
// Errors say what was looked for and how to get it (`deepinfer model pull`).
Result<std::string> ResolveModelPath(const std::string& model);

}  // namespace deepinfer
