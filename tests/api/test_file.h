// The files of this suite: exchanges as text. README.md describes the format.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "deepinfer/status.h"

namespace deepinfer {

struct ApiExchange {
  // kSend waits for the answer; kHold leaves the request running and its client connected.
  enum class Kind { kSend, kHold } kind = Kind::kSend;
  int line = 0;
  std::string method;
  std::string target;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;  // as written; see ExpandBody
  // What is expected. Of the headers, only those named are compared.
  std::string status;
  std::vector<std::pair<std::string, std::string>> answer_headers;
  std::string answer;
};

// What happens between two exchanges.
struct ApiStep {
  enum class Kind { kServer, kExchange, kLoad, kLeave } kind = Kind::kExchange;
  int line = 0;
  std::string options;  // of kServer
  ApiExchange exchange;
  // Comment and blank lines before it, and a "case" line, as written: kept by updates.
  std::string preface;
  std::string case_name;  // the case it belongs to
};

struct ApiFile {
  std::vector<ApiStep> steps;
  std::string rest;  // comments after the last step
};

Result<ApiFile> ParseApiFile(const std::string& text);
std::string FormatApiFile(const ApiFile& file);

// "@{x*3}" is xxx, "@{\xff}" the byte 255.
Result<std::string> ExpandBody(const std::string& text);

}  // namespace deepinfer
