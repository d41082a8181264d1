// Offline requests from texts, ids and messages: one place for `generate`, `chat` and batch files.
// Any thread; the model must outlive it.
#pragma once

#include <string>
#include <vector>

#include "api/output_plan.h"
#include "api/sampling_json.h"
#include "base/json.h"
#include "deepinfer/request.h"
#include "models/loaded_model.h"

namespace deepinfer {

class RequestBuilder {
 public:
  // `params` holds request fields that apply to every request (the command line's flags).
  RequestBuilder(const LoadedModel* model, Json params, int max_logprobs);

  // A request with what `line_params` (an object or null) changes on top of the common fields.
  Result<Request> FromText(const std::string& text, const Json& line_params) const;
  Result<Request> FromIds(std::vector<TokenId> ids, const Json& line_params) const;
  Result<Request> FromMessages(const Json& messages, const Json& line_params) const;
  // The model has a chat template or a prompt format of its own.
  bool has_chat_format() const {
    return model_->chat_template != nullptr || model_->prompt_profile != nullptr;
  }

 private:
  Result<Request> WithSampling(std::vector<TokenId> ids, const Json& line_params) const;
  const LoadedModel* model_;
  const Json params_;
  SamplingDefaults defaults_;
  const OutputStyle style_;
};

// {"message", "type", "param", "code", "status"} of a failed request, for an output line.
Json ErrorField(const Status& status);

// The request that a command's prompt stands for: a chat turn when the model has a chat template.
Json UserMessage(const std::string& text);

}  // namespace deepinfer
