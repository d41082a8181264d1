// The seam between a wire dialect and whoever runs requests: a JSON body becomes a DialectCall, the
// engine's deltas become frames or one body. The whole body is the fold of the very chunks that a
// stream would have sent. Parsing runs on any thread; a ResponseStream is called by one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "api/chat_prompt.h"
#include "api/error.h"
#include "api/output_plan.h"
#include "api/sampling_json.h"
#include "base/json.h"
#include "deepinfer/request.h"
#include "deepinfer/status.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace deepinfer {

class ResponseStore;

// Where the stream of a chat says what was used. kOpenAi: in a chunk of its own, when asked for.
// kDeepSeek: on the last chunk that ends a choice, always, with the tokens found in the cache.
enum class UsageStyle { kOpenAi, kDeepSeek };

// What dialects know of the model they speak for. Outlives the calls made from it.
struct DialectContext {
  std::vector<std::string> names;               // served names, at least one; the first is reported
  std::vector<std::string> aliases;             // accepted as well, never listed
  const Tokenizer* tokenizer = nullptr;         // nullptr: token ids only
  const ChatTemplate* chat_template = nullptr;  // nullptr: no template
  const PromptProfile* prompt_profile = nullptr;  // takes the place of the template
  OutputStyle output;                             // ProbeOutputStyle of the above
  SamplingDefaults defaults;                      // max_tokens unset: the dialect's default
  int vocab = 0;
  int max_model_len = 0;
  int embedding_size = 0;  // 0: the model gives no embeddings
  int64_t created_s = 0;   // Unix time of loading
  UsageStyle usage_style = UsageStyle::kOpenAi;
  int stream_interval = 1;  // tokens of a chunk, unless the request says
  SpecialTokenTrust trust = SpecialTokenTrust::kTemplate;
  ResponseStore* responses = nullptr;  // nullptr: none are kept
  // Fields that no dialect knows: a warning in the answer, or an error.
  enum class UnknownFields { kWarn, kRefuse } unknown_fields = UnknownFields::kWarn;
};

class ResponseStream {
 public:
  virtual ~ResponseStream() = default;
  // Once, before anything else. `cancel` ends the requests; it may be called on any thread, also
  // after the response is over. An error: nothing runs, Fail follows.
  virtual Status OnStart(std::function<void()> /*cancel*/) { return {}; }
  // `prompt` is the index into DialectCall::requests. Streaming: appends frames, perhaps none.
  // Whole: folds the delta. A delta that ends in kError or kCancelled goes to Fail instead.
  virtual void OnDelta(int prompt, OutputDelta delta, std::string* out) = 0;
  // After the last delta of every prompt. Streaming: the frames that end the stream; whole: the
  // JSON body.
  virtual void Finish(std::string* out) = 0;
  // Streaming: the frame that reports a failure after the start; nothing may follow it. Whole: a
  // body that is answered with 200, or nothing: then the error itself is the answer.
  virtual void Fail(const Status& status, std::string* out) = 0;
};

struct DialectCall {
  std::vector<Request> requests;  // one for each prompt
  enum class Mode { kWhole, kStream } mode = Mode::kWhole;
  ErrorShape errors = ErrorShape::kOpenAi;
  // Not empty: the client gets this body at once, and the response goes to the store alone.
  std::string accepted;
  std::unique_ptr<ResponseStream> response;
};

// POST /v1/chat/completions and /v1/completions. Errors are what the client did wrong.
Result<DialectCall> ParseChatCompletion(const Json& body, const DialectContext& context);
Result<DialectCall> ParseCompletion(const Json& body, const DialectContext& context);

}  // namespace deepinfer
