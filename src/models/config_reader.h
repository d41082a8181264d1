// Reads the fields of one JSON object of a configuration with their ranges. The first error sticks
// and names the field with its path ("text_config.head_dim is 7; ..."); later reads return the
// low end of their range, so a reader is written straight down and checked once.
// Used on the loading thread; the JSON outlives it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "deepinfer/status.h"

namespace deepinfer {

class ConfigReader {
 public:
  // `prefix` is put before field names in messages ("text_config."). nullptr: an empty object.
  ConfigReader(const Json* object, std::string prefix);

  bool Has(std::string_view key) const;                          // present and not null
  int64_t Int(std::string_view key, int64_t low, int64_t high);  // required
  int64_t IntOr(std::string_view key, int64_t fallback, int64_t low, int64_t high);
  // (low, high]
  double Number(std::string_view key, double low, double high);  // required
  double NumberOr(std::string_view key, double fallback, double low, double high);
  bool BoolOr(std::string_view key, bool fallback);
  std::string StringOr(std::string_view key, std::string fallback);
  // Absent: empty. At most `count_max` numbers, each in [low, high].
  std::vector<int64_t> Ints(std::string_view key, int64_t low, int64_t high, size_t count_max);
  // The field must be absent or have this value, the only one supported.
  void Only(std::string_view key, std::string_view value);
  // A contradiction or something not supported; `key` becomes the parameter of the error.
  void Refuse(std::string_view key, std::string message);

  std::string Name(std::string_view key) const { return prefix_ + std::string(key); }
  const Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }

 private:
  const Json* Field(std::string_view key);

  const Json* object_;
  std::string prefix_;
  Status status_;
};

}  // namespace deepinfer
