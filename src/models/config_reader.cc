#include "models/config_reader.h"

#include <utility>

#include "base/format.h"

namespace deepinfer {
namespace {

const Json& EmptyObject() {
  static const Json empty = Json::Object();
  return empty;
}

}  // namespace

ConfigReader::ConfigReader(const Json* object, std::string prefix)
    : object_(object != nullptr ? object : &EmptyObject()), prefix_(std::move(prefix)) {
  if (!object_->is_object()) {
    status_ = Invalid(Format("config.json: {} is not an object", prefix_));
    object_ = &EmptyObject();
  }
}

bool ConfigReader::Has(std::string_view key) const {
  const Json* value = object_->Find(key);
  return value != nullptr && !value->is_null();
}

void ConfigReader::Refuse(std::string_view key, std::string message) {
  if (status_.ok()) status_ = Invalid("config.json: " + std::move(message)).WithParam(Name(key));
}

const Json* ConfigReader::Field(std::string_view key) {
  if (!Has(key)) {
    Refuse(key, Format("{} is missing", Name(key)));
    return nullptr;
  }
  return object_->Find(key);
}

int64_t ConfigReader::Int(std::string_view key, int64_t low, int64_t high) {
  const Json* field = Field(key);
  if (field == nullptr) return low;
  const Result<int64_t> value = field->AsInt();
  if (!value.ok() || *value < low || *value > high) {
    Refuse(key, Format("{} is {}; {} to {} are supported", Name(key), field->Dump(), low, high));
    return low;
  }
  return *value;
}

int64_t ConfigReader::IntOr(std::string_view key, int64_t fallback, int64_t low, int64_t high) {
  return Has(key) ? Int(key, low, high) : fallback;
}

double ConfigReader::Number(std::string_view key, double low, double high) {
  const Json* field = Field(key);
  if (field == nullptr) return high;
  const Result<double> value = field->AsDouble();
  if (!value.ok() || !(*value > low && *value <= high)) {
    Refuse(key, Format("{} is {}; it must be above {} and at most {}", Name(key), field->Dump(),
                       low, high));
    return high;
  }
  return *value;
}

double ConfigReader::NumberOr(std::string_view key, double fallback, double low, double high) {
  return Has(key) ? Number(key, low, high) : fallback;
}

bool ConfigReader::BoolOr(std::string_view key, bool fallback) {
  if (!Has(key)) return fallback;
  const Result<bool> value = object_->Find(key)->AsBool();
  if (!value.ok()) {
    Refuse(key, Format("{} is {}; true or false is needed", Name(key), object_->Find(key)->Dump()));
  }
  return value.ok() ? *value : fallback;
}

std::string ConfigReader::StringOr(std::string_view key, std::string fallback) {
  if (!Has(key)) return fallback;
  Result<std::string> value = object_->Find(key)->AsString();
  if (!value.ok()) {
    Refuse(key, Format("{} is {}; a text is needed", Name(key), object_->Find(key)->Dump()));
    return fallback;
  }
  return std::move(value).value();
}

std::vector<int64_t> ConfigReader::Ints(std::string_view key, int64_t low, int64_t high,
                                        size_t count_max) {
  std::vector<int64_t> values;
  if (!Has(key)) return values;
  const Json& list = *object_->Find(key);
  if (!list.is_array() || list.items().size() > count_max) {
    Refuse(key, Format("{} must be a list of at most {} numbers", Name(key), count_max));
    return values;
  }
  for (const Json& item : list.items()) {
    const Result<int64_t> value = item.AsInt();
    if (!value.ok() || *value < low || *value > high) {
      Refuse(key, Format("{} has {}; {} to {} are supported", Name(key), item.Dump(), low, high));
      return {};
    }
    values.push_back(*value);
  }
  return values;
}

void ConfigReader::Only(std::string_view key, std::string_view value) {
  if (!Has(key)) return;
  const std::string found = StringOr(key, "");
  if (ok() && found != value) {
    Refuse(key, Format("{} is \"{}\"; {} is supported", Name(key), found, value));
  }
}

}  // namespace deepinfer
