// The environment of the process. The one place that reads it: everybody else gets plain values.
// Read at start-up on the main thread, before threads exist; nothing here is cached.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "deepinfer/status.h"

namespace deepinfer {

// A variable that is unset or empty is absent.
std::optional<std::string> GetEnv(const std::string& name);

// Typed getters: absent gives `fallback`; a value of the wrong form or range is an error that
// names the variable. Booleans are 0/1, false/true, off/on, no/yes in any case.
Result<bool> GetEnvBool(const std::string& name, bool fallback);
Result<int64_t> GetEnvInt(const std::string& name, int64_t fallback, int64_t min, int64_t max);

// A published or own DEEPINFER_* switch that is no flag.
struct EnvVariable {
  const char* name;
  const char* meaning;
  enum class Support { kHonoured, kNoEffectYet } support;
};
std::span<const EnvVariable> KnownEnvVariables();

// One sentence for each DEEPINFER_* variable that is set but unknown, or known without effect in
// this version. `flag_names` are the variables that stand for flags of the command line.
std::vector<std::string> EnvWarnings(std::span<const std::string> flag_names);

}  // namespace deepinfer
