// The lines of `generate --input --output`: what a line asks, which line a result belongs to. Pure
// functions, any thread. The files are read and written by base/line_file.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/line_file.h"
#include "deepinfer/request.h"
#include "deepinfer/status.h"

namespace deepinfer {

// One input line: {"id"?, "prompt": text or [ids] | "messages": [...], "params"?: {...}}.
struct PromptLine {
  int64_t index = 0;
  Status status;  // why the line cannot run; the other fields are then unset
  Json id;        // echoed as it came; null when absent
  std::optional<std::string> text;
  std::vector<TokenId> ids;
  Json messages;  // null or an array
  Json params;    // null or an object
};

// Parses one line; never fails otherwise than in PromptLine::status.
PromptLine ParsePromptLine(const LineRecord& record);

// The index of a result that `generate` wrote.
std::optional<int64_t> IndexOfResult(std::string_view line);

}  // namespace deepinfer
