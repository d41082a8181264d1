#include <cstddef>
#include <cstdint>

#include "api/api_test_util.h"
#include "api/dialect.h"
#include "api/error.h"
#include "api/tokenize.h"
#include "base/check.h"
#include "base/json.h"

namespace deepinfer {
namespace {

// Whatever a body asks for, the answer to it is JSON.
void Answer(Result<DialectCall> call) {
  if (!call.ok()) {
    DI_CHECK(Json::Parse(ErrorBody(call.status()).Dump()).ok());
    return;
  }
  std::string out;
  for (size_t prompt = 0; prompt < call->requests.size() && prompt < 4; ++prompt) {
    const SamplingParams& sampling = call->requests[prompt].sampling;
    DI_CHECK(!call->requests[prompt].prompt.empty());
    for (int sample = 0; sample < sampling.n && sample < 3; ++sample) {
      OutputDelta delta;
      delta.sample = sample;
      delta.text = "a\xC3\xA9\n\"";
      delta.token_ids = {kEmoji, 'a'};
      for (const TokenId id : delta.token_ids) {
        delta.logprobs.push_back({id, -1.5F, 1, {{kHello, -0.5F}, {'a', -1.5F}}});
      }
      if (sample == 1) delta.prompt_logprobs = {std::nullopt, TokenLogprob{'a', -2.0F, 3, {}}};
      delta.finish = sample == 0 ? FinishReason::kStop : FinishReason::kLength;
      delta.stop_text = "\x01";
      call->response->OnDelta(static_cast<int>(prompt), std::move(delta), &out);
    }
  }
  call->response->Finish(&out);
  if (call->mode == DialectCall::Mode::kWhole) {
    const Result<Json> body = Json::Parse(out);
    DI_CHECK(body.ok(), "{}: {}", body.status().message(), out);
    return;
  }
  size_t at = 0;
  while (out.compare(at, 12, "data: [DONE]") != 0) {
    const size_t end = out.find("\n\n", at);
    DI_CHECK(end != std::string::npos && out.compare(at, 6, "data: ") == 0);
    const Result<Json> frame = Json::Parse(std::string_view(out).substr(at + 6, end - at - 6));
    DI_CHECK(frame.ok(), "{}", frame.status().message());
    at = end + 2;
  }
}

void AnswerEverything(std::string_view text) {
  static const TinyText tiny = MakeTinyText();
  const DialectContext context = tiny.Context();
  const Result<Json> body = Json::Parse(text);
  if (!body.ok()) return;
  Answer(ParseChatCompletion(*body, context));
  Answer(ParseCompletion(*body, context));
  (void)Tokenize(*body, context).ok();
  (void)Detokenize(*body, context).ok();
}

}  // namespace
}  // namespace deepinfer

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  deepinfer::AnswerEverything(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
