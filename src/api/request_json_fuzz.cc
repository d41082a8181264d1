#include <cstddef>
#include <cstdint>

#include "api/api_test_util.h"
#include "api/apply_template.h"
#include "api/dialect.h"
#include "api/error.h"
#include "api/llama_server.h"
#include "api/messages.h"
#include "api/responses.h"
#include "api/tokenize.h"
#include "base/check.h"
#include "base/json.h"
#include "text/grammar/grammar.h"

namespace deepinfer {
namespace {

// Reasoning, text, a call and a call that is cut.
constexpr const char* kText =
    "hm</think>a<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}}</tool_call>b"
    "<tool_call>{\"name\":\"g\",\"arguments\":{\"a";

// As far as the engine takes a grammar: compiled or refused, then a mask of its beginning.
void CheckGrammar(const GrammarSource& source) {
  static const auto vocabulary = [] {
    GrammarVocabulary::Options options;
    options.stop_ids = {kEnd};
    options.mask_cache_bytes_max = 1 << 20;
    return *GrammarVocabulary::Create(*MakeTinyText().tokenizer, options);
  }();
  GrammarOptions options;
  options.work_max = 20'000;
  options.states_max = 2'000;
  DI_CHECK(!source.param.empty());
  const auto grammar = CompiledGrammar::Compile(source, options);
  if (!grammar.ok()) return;
  std::vector<uint64_t> mask(vocabulary->mask_words());
  GrammarMatcher(*grammar, vocabulary, 0).FillMask(mask);
}

// Whatever a body asks for, the answer to it is JSON.
void Answer(Result<DialectCall> call) {
  if (!call.ok()) {
    DI_CHECK(Json::Parse(ErrorBody(call.status()).Dump()).ok());
    return;
  }
  if (call->requests[0].sampling.grammar.has_value())
    CheckGrammar(*call->requests[0].sampling.grammar);
  std::string out;
  if (!call->response->OnStart([] {}).ok()) return;
  for (size_t prompt = 0; prompt < call->requests.size() && prompt < 4; ++prompt) {
    const SamplingParams& sampling = call->requests[prompt].sampling;
    DI_CHECK(!call->requests[prompt].prompt.empty());
    for (int sample = 0; sample < sampling.n && sample < 3; ++sample) {
      OutputDelta delta;
      delta.sample = sample;
      delta.text = sample % 2 == 0 ? kText : "a\xC3\xA9\n\"";
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
  if (call->requests[0].prompt.size() % 8 == 0) {
    call->response->Fail(Internal("broken \x01"), &out);
    if (call->mode == DialectCall::Mode::kWhole && out.empty()) return;
  } else {
    call->response->Finish(&out);
  }
  if (call->mode == DialectCall::Mode::kWhole) {
    const Result<Json> body = Json::Parse(out);
    DI_CHECK(body.ok(), "{}: {}", body.status().message(), out);
    return;
  }
  size_t at = 0;
  while (at < out.size()) {
    const size_t end = out.find("\n\n", at);
    DI_CHECK(end != std::string::npos, "{}", out);
    std::string_view frame = std::string_view(out).substr(at, end - at);
    at = end + 2;
    if (frame.starts_with("event: ")) frame.remove_prefix(frame.find('\n') + 1);
    DI_CHECK(frame.starts_with("data: "), "{}", frame);
    frame.remove_prefix(6);
    if (frame == "[DONE]") continue;
    const Result<Json> json = Json::Parse(frame);
    DI_CHECK(json.ok(), "{}", json.status().message());
  }
}

void AnswerEverything(std::string_view text) {
  static const TinyText plain = MakeTinyText();
  static const TinyText hermes = MakeTinyText(TinyTemplate::kHermes);
  static const TinyText tags = [] {
    TinyText made = MakeTinyText();
    made.prompt_profile = FindPromptProfile("deepseek_v41");
    return made;
  }();
  static const RealClock clock;
  static ResponseStore store({.responses_max = 10, .bytes_max = 1 << 16, .ttl_s = 60}, &clock);
  const Result<Json> body = Json::Parse(text);
  if (!body.ok()) return;
  for (const TinyText* tiny : {&plain, &hermes, &tags}) {
    DialectContext context = tiny->Context();
    context.max_model_len = 4000;
    context.responses = &store;
    for (const auto& parser : {ParseChatCompletion, ParseCompletion, ParseMessages, ParseResponses,
                               ParseLlamaCompletion}) {
      Answer(parser(*body, context));
    }
    (void)Tokenize(*body, context).ok();
    (void)Detokenize(*body, context).ok();
    (void)ApplyTemplate(*body, context).ok();
    (void)CountMessageTokens(*body, context).ok();
    (void)CountResponseTokens(*body, context).ok();
  }
}

}  // namespace
}  // namespace deepinfer

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  deepinfer::AnswerEverything(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
