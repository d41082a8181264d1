// Reads the YAML file of --config: a flat map from flag names to values or lists of values.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "deepinfer/status.h"

namespace deepinfer {

// Errors name the file and the line. Underscores in keys are read as dashes.
Result<std::map<std::string, std::vector<std::string>>> ReadConfigFile(const std::string& path);

}  // namespace deepinfer
