// One JSON value in a file of its own: replaced as a whole or not at all, checked when it is read.
// Any thread, one writer for each path.
#pragma once

#include <string>

#include "base/json.h"
#include "deepinfer/status.h"

namespace deepinfer {

// Through a new file that reaches the disk before it takes the place of the old one.
Status WriteStateFile(const std::string& path, const Json& value);
// Errors name the file and what is wrong with it.
Result<Json> ReadStateFile(const std::string& path);
// What is written under `path` reaches the disk.
Status WriteWholeFile(const std::string& path, std::string_view bytes);

}  // namespace deepinfer
