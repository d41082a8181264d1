#include "apps/config_file.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>

#include "base/format.h"

namespace deepinfer {

namespace {

constexpr uintmax_t kConfigBytesMax = 1 << 20;

Result<std::vector<std::string>> ReadValues(const YAML::Node& node) {
  if (node.IsScalar()) return std::vector<std::string>{node.Scalar()};
  std::vector<std::string> values;
  if (!node.IsSequence()) return Invalid("wants a value or a list of values");
  for (const YAML::Node& item : node) {
    if (!item.IsScalar()) return Invalid("wants a list of plain values");
    values.push_back(item.Scalar());
  }
  return values;
}

}  // namespace

Result<std::map<std::string, std::vector<std::string>>> ReadConfigFile(const std::string& path) {
  std::error_code error;
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error) return NotFound(Format("{}: {}", path, error.message()));
  if (bytes > kConfigBytesMax) {
    return Invalid(
        Format("{}: {} bytes, a configuration has at most {}", path, bytes, kConfigBytesMax));
  }
  std::map<std::string, std::vector<std::string>> out;
  try {
    const YAML::Node root = YAML::LoadFile(path);
    if (root.IsNull()) return out;
    if (!root.IsMap()) return Invalid(Format("{}: wants \"flag: value\" lines", path));
    for (const auto& member : root) {
      std::string key = member.first.as<std::string>();
      std::replace(key.begin(), key.end(), '_', '-');
      if (member.second.IsNull()) continue;
      Result<std::vector<std::string>> values = ReadValues(member.second);
      if (!values.ok()) {
        return Invalid(Format("{}:{}: {} {}", path, member.second.Mark().line + 1, key,
                              values.status().message()));
      }
      if (!out.emplace(key, std::move(values).value()).second) {
        return Invalid(Format("{}: {} appears twice", path, key));
      }
    }
  } catch (const YAML::Exception& failure) {
    return Invalid(Format("{}:{}: {}", path, failure.mark.line + 1, failure.msg));
  }
  return out;
}

}  // namespace deepinfer
