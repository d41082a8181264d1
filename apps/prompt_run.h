// The offline batch job behind `generate --input --output`: a bounded window of requests in
// flight, results in input order, resumable after any kill.
#pragma once

#include <string>

#include "apps/request_builder.h"
#include "deepinfer/engine.h"

namespace deepinfer {

struct PromptFileJob {
  std::string input;   // "-": standard input
  std::string output;  // "-": standard output
  enum class Existing { kRefuse, kResume } existing = Existing::kRefuse;
};

struct PromptFileTotals {
  int64_t lines = 0;    // written by this run
  int64_t resumed = 0;  // kept from an earlier run
  int64_t failed = 0;   // lines whose result is an error
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  double seconds = 0;
};

// A line that fails gets an "error" in its result and disturbs no other; the status is about the
// files alone.
Result<PromptFileTotals> RunPromptFile(const PromptFileJob& job, Engine* engine,
                                       const RequestBuilder& builder);

}  // namespace deepinfer
