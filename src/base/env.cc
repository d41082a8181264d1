#include "base/env.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "base/format.h"

namespace deepinfer {
namespace {

using Support = EnvVariable::Support;

constexpr std::string_view kPrefix = "DEEPINFER_";

constexpr EnvVariable kVariables[] = {
    {"DEEPINFER_CACHE", "directory of downloaded models, default ~/.cache/deepinfer",
     Support::kHonoured},
    {"DEEPINFER_CPU_ISA", "scalar, avx2, avx512 or amx: forces the CPU kernels of that set",
     Support::kHonoured},
    {"DEEPINFER_ACCELERATOR", "nvidia or ascend", Support::kNoEffectYet},
    {"DEEPINFER_HF_MODEL_DIR", "local checkpoint directory used when no model is named",
     Support::kHonoured},
    {"DEEPINFER_ENABLE_MTP_VARLEN", "verification lengths chosen by confidence",
     Support::kNoEffectYet},
    {"DEEPINFER_USE_NEXTN_DECODE", "maximum draft length; 0: no drafts", Support::kHonoured},
    {"DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE", "compact: bounded replay in prefill",
     Support::kHonoured},
    {"DEEPINFER_YOCO_PREFILL_KEEP_TOKENS", "suffix kept by bounded replay", Support::kHonoured},
    {"DEEPINFER_ZERO_OVERHEAD_SCHEDULING", "0: do not plan a step while the one before runs",
     Support::kHonoured},
    {"DEEPINFER_BATCH_INVARIANT", "results do not depend on the batch: on the CPU they never do",
     Support::kHonoured},
    {"DEEPINFER_SO_BUILDER_CPUS", "threads that compile grammars", Support::kHonoured},
    {"DEEPINFER_FORCE_LOAD_BALANCE", "artificially even expert routing for benchmarks",
     Support::kNoEffectYet},
};

bool EqualsIgnoringCase(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

}  // namespace

std::optional<std::string> GetEnv(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

Result<bool> GetEnvBool(const std::string& name, bool fallback) {
  const std::optional<std::string> value = GetEnv(name);
  if (!value) return fallback;
  for (const char* text : {"1", "true", "on", "yes"}) {
    if (EqualsIgnoringCase(*value, text)) return true;
  }
  for (const char* text : {"0", "false", "off", "no"}) {
    if (EqualsIgnoringCase(*value, text)) return false;
  }
  return Invalid(Format("{}={:.64} is not a switch: set it to 0 or 1", name, *value))
      .WithParam(name);
}

Result<int64_t> GetEnvInt(const std::string& name, int64_t fallback, int64_t min, int64_t max) {
  const std::optional<std::string> value = GetEnv(name);
  if (!value) return fallback;
  int64_t number = 0;
  const char* last = value->data() + value->size();
  const auto end = std::from_chars(value->data(), last, number);
  if (end.ec == std::errc() && end.ptr == last && number >= min && number <= max) return number;
  return Invalid(Format("{}={:.64} is not a whole number from {} to {}", name, *value, min, max))
      .WithParam(name);
}

std::span<const EnvVariable> KnownEnvVariables() { return kVariables; }

std::vector<std::string> EnvWarnings(std::span<const std::string> flag_names) {
  std::vector<std::string> warnings;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (!text.starts_with(kPrefix)) continue;
    const std::string_view name = text.substr(0, text.find('='));
    if (std::find(flag_names.begin(), flag_names.end(), name) != flag_names.end()) continue;
    const auto known =
        std::find_if(std::begin(kVariables), std::end(kVariables),
                     [&](const EnvVariable& variable) { return variable.name == name; });
    if (known == std::end(kVariables)) {
      warnings.push_back(Format("environment variable {} is unknown and has no effect", name));
    } else if (known->support == Support::kNoEffectYet) {
      warnings.push_back(Format("environment variable {} ({}) has no effect in this version", name,
                                known->meaning));
    }
  }
  std::sort(warnings.begin(), warnings.end());
  return warnings;
}

}  // namespace deepinfer
