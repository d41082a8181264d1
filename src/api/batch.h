// A line of a batch file (OpenAI's Batch API) and the line that answers it; which endpoints a batch
// may use. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "api/dialect.h"
#include "base/json.h"
#include "base/line_file.h"
#include "deepinfer/status.h"

namespace deepinfer {

using DialectParser = Result<DialectCall> (*)(const Json& body, const DialectContext& context);

// nullptr for an endpoint that no batch may use; `BatchEndpoints` names those that it may.
DialectParser FindBatchEndpoint(std::string_view url);
std::string BatchEndpoints();

struct BatchItem {
  std::string custom_id;  // empty when the line is too broken to tell
  std::string url;
  Json body;      // asks for a whole answer, whatever the line says of streams
  Status status;  // why the line cannot run
};

// {"custom_id", "method": "POST", "url", "body"}. `endpoint`: the one url that is allowed; empty:
// any that a batch may use. Never fails otherwise than in BatchItem::status.
BatchItem ParseBatchItem(const LineRecord& line, std::string_view endpoint);

struct BatchAnswer {
  std::string request_id;
  int status_code = 0;
  std::string body;  // JSON
};

// One line without newline. The id ends in the index, which IndexOfAnswer reads back.
std::string AnswerLine(std::string_view job, int64_t index, std::string_view custom_id,
                       const BatchAnswer& answer);
// For a line that never became a request.
std::string ErrorLine(std::string_view job, int64_t index, std::string_view custom_id,
                      const Status& status);
std::optional<int64_t> IndexOfAnswer(std::string_view line);

}  // namespace deepinfer
