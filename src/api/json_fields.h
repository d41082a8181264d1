// Reads request fields with their ranges. Absent and null fields leave the output as it is; every
// error names the field, its value and what is allowed. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "deepinfer/request.h"
#include "deepinfer/status.h"

namespace deepinfer {

struct NumberRange {
  double low, high;
  enum class Low { kClosed, kOpen } kind = Low::kClosed;
};

// The member under `key`, or nullptr when it is absent or null.
const Json* FindField(const Json& body, std::string_view key);
Status WrongKind(std::string_view key, std::string_view wanted);

Status ReadFloat(const Json& body, std::string_view key, NumberRange range, float* out);
Status ReadInt(const Json& body, std::string_view key, int64_t low, int64_t high,
               std::optional<int64_t>* out);
Status ReadBool(const Json& body, std::string_view key, bool* out);
Status ReadString(const Json& body, std::string_view key, size_t bytes_max, std::string* out);
Status ReadIds(const Json& body, std::string_view key, size_t count_max, std::vector<TokenId>* out);
// A text or a list of texts; empty ones are dropped.
Status ReadTexts(const Json& body, std::string_view key, size_t count_max, size_t bytes_max,
                 std::vector<std::string>* out);

// A member of `object` that is none of `known` is an error: its param is `path` and the name.
Status CheckMembers(const Json& object, std::span<const std::string_view> known,
                    std::string_view path);

// The ids of `list`, an array found under `key`.
Status ReadIdList(const Json& list, std::string_view key, size_t count_max,
                  std::vector<TokenId>* out);

}  // namespace deepinfer
