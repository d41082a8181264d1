// Host time that one streamed token costs a dialect: reading the text into parts, writing the
// frame.
#include <benchmark/benchmark.h>

#include "api/api_test_util.h"
#include "api/dialect.h"
#include "api/messages.h"
#include "api/responses.h"

namespace deepinfer {
namespace {

using Parser = Result<DialectCall> (*)(const Json& body, const DialectContext& context);

// An answer that thinks, speaks and calls a tool, in pieces of four bytes.
std::vector<std::string> Pieces() {
  std::string text = "hm";
  for (int i = 0; i < 200; ++i) text += " so it goes";
  text += "</think>";
  for (int i = 0; i < 200; ++i) text += " and then\n";
  text += "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"";
  for (int i = 0; i < 200; ++i) text += "\\n more of it";
  text += "\"}}</tool_call>";
  std::vector<std::string> pieces;
  for (size_t i = 0; i < text.size(); i += 4) pieces.push_back(text.substr(i, 4));
  return pieces;
}

void Stream(benchmark::State& state, Parser parser, const char* body) {
  const TinyText text = MakeTinyText(TinyTemplate::kHermes);
  DialectContext context = text.Context();
  context.max_model_len = 100'000;
  const Json parsed = *Json::Parse(body);
  const std::vector<std::string> pieces = Pieces();
  int64_t tokens = 0;
  for (auto _ : state) {
    Result<DialectCall> call = parser(parsed, context);
    if (!call.ok() || !call->response->OnStart([] {}).ok()) {
      state.SkipWithError("the request was refused");
      return;
    }
    std::string out;
    for (const std::string& piece : pieces) {
      OutputDelta delta;
      delta.text = piece;
      delta.token_ids = {'a'};
      delta.usage = {5, 1, 0};
      out.clear();
      call->response->OnDelta(0, std::move(delta), &out);
      benchmark::DoNotOptimize(out.data());
    }
    tokens += static_cast<int64_t>(pieces.size());
  }
  state.counters["us_per_token"] =
      benchmark::Counter(static_cast<double>(tokens) * 1e-6,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

#define DI_TOOL "{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}"
BENCHMARK_CAPTURE(Stream, chat, ParseChatCompletion,
                  "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"stream\":true,"
                  "\"tools\":[{\"type\":\"function\",\"function\":" DI_TOOL "}]}");
BENCHMARK_CAPTURE(Stream, responses, ParseResponses,
                  "{\"input\":\"hi\",\"stream\":true,\"tools\":[{\"type\":\"function\","
                  "\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}]}");
BENCHMARK_CAPTURE(Stream, messages, ParseMessages,
                  "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"stream\":true,"
                  "\"max_tokens\":9,\"tools\":[{\"name\":\"f\",\"input_schema\":"
                  "{\"type\":\"object\"}}]}");
BENCHMARK_CAPTURE(Stream, completions, ParseCompletion, "{\"prompt\":\"hi\",\"stream\":true}");
#undef DI_TOOL

}  // namespace
}  // namespace deepinfer
