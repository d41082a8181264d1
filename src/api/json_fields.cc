#include "api/json_fields.h"

#include <algorithm>

#include "api/error.h"
#include "base/format.h"

namespace deepinfer {

const Json* FindField(const Json& body, std::string_view key) {
  const Json* value = body.Find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

Status WrongKind(std::string_view key, std::string_view wanted) {
  return Invalid(Format("\"{}\" must be {}", key, wanted)).WithParam(std::string(key));
}

Status ReadFloat(const Json& body, std::string_view key, NumberRange range, float* out) {
  const Json* value = FindField(body, key);
  if (value == nullptr) return {};
  const Result<double> number = value->AsDouble();
  if (!number.ok()) return WrongKind(key, "a finite number");
  const bool low_ok =
      range.kind == NumberRange::Low::kOpen ? *number > range.low : *number >= range.low;
  if (!low_ok || *number > range.high) {
    return Invalid(Format("\"{}\" is {}, allowed is {}{}, {}]", key, value->string(),
                          range.kind == NumberRange::Low::kOpen ? "(" : "[", range.low, range.high))
        .WithParam(std::string(key));
  }
  *out = static_cast<float>(*number);
  return {};
}

Status ReadInt(const Json& body, std::string_view key, int64_t low, int64_t high,
               std::optional<int64_t>* out) {
  const Json* value = FindField(body, key);
  if (value == nullptr) return {};
  const Result<int64_t> number = value->AsInt();
  if (!number.ok()) return WrongKind(key, "an integer");
  if (*number < low || *number > high) {
    return Invalid(Format("\"{}\" is {}, allowed is {}..{}", key, *number, low, high))
        .WithParam(std::string(key));
  }
  *out = *number;
  return {};
}

Status ReadBool(const Json& body, std::string_view key, bool* out) {
  const Json* value = FindField(body, key);
  if (value == nullptr) return {};
  if (!value->is_bool()) return WrongKind(key, "true or false");
  *out = *value->AsBool();
  return {};
}

Status ReadString(const Json& body, std::string_view key, size_t bytes_max, std::string* out) {
  const Json* value = FindField(body, key);
  if (value == nullptr) return {};
  if (!value->is_string()) return WrongKind(key, "a text");
  if (value->string().size() > bytes_max) {
    return WrongKind(key, Format("a text of at most {} bytes", bytes_max));
  }
  *out = value->string();
  return {};
}

Status ReadIdList(const Json& list, std::string_view key, size_t count_max,
                  std::vector<TokenId>* out) {
  if (list.items().size() > count_max) {
    return WrongKind(key, Format("a list of at most {} token ids", count_max));
  }
  out->reserve(list.items().size());
  for (const Json& item : list.items()) {
    const Result<int64_t> id = item.AsInt();
    if (!id.ok() || *id < 0 || *id > INT32_MAX) {
      return Invalid(
                 Format("\"{}\" holds {}, which is no token id", key, item.Dump().substr(0, 64)))
          .WithParam(std::string(key));
    }
    out->push_back(static_cast<TokenId>(*id));
  }
  return {};
}

Status ReadIds(const Json& body, std::string_view key, size_t count_max,
               std::vector<TokenId>* out) {
  const Json* value = FindField(body, key);
  if (value == nullptr) return {};
  if (!value->is_array()) return WrongKind(key, "a list of token ids");
  return ReadIdList(*value, key, count_max, out);
}

Status ReadTexts(const Json& body, std::string_view key, size_t count_max, size_t bytes_max,
                 std::vector<std::string>* out) {
  const Json* value = FindField(body, key);
  if (value == nullptr) return {};
  const auto add = [&](const Json& item) -> Status {
    if (!item.is_string()) return WrongKind(key, "a text or a list of texts");
    if (item.string().size() > bytes_max) {
      return Invalid(Format("\"{}\" holds a text of {} bytes, allowed are {}", key,
                            item.string().size(), bytes_max))
          .WithParam(std::string(key));
    }
    if (!item.string().empty()) out->push_back(item.string());
    return {};
  };
  if (value->is_string()) return add(*value);
  if (!value->is_array()) return WrongKind(key, "a text or a list of texts");
  if (value->items().size() > count_max) {
    return Invalid(Format("\"{}\" holds {} texts, allowed are {}", key, value->items().size(),
                          count_max))
        .WithParam(std::string(key));
  }
  for (const Json& item : value->items()) DI_TRY(add(item));
  return {};
}

Status CheckMembers(const Json& object, std::span<const std::string_view> known,
                    std::string_view path) {
  for (const auto& [key, value] : object.members()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    std::string name = path.empty() ? key.substr(0, 64) : Format("{}.{}", path, key.substr(0, 64));
    return Invalid(Format("unknown field \"{}\"", name))
        .WithParam(std::move(name))
        .WithReason(kUnknownParameter);
  }
  return {};
}

}  // namespace deepinfer
