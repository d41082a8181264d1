// Load on a running OpenAI-compatible server, with vLLM's metric definitions: TTFT from sending to
// the first token, TPOT (end - first) / (tokens - 1), ITL between chunks, E2EL the whole request.
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <thread>

#include "apps/bench.h"
#include "apps/bench_stats.h"
#include "apps/command_line.h"
#include "apps/commands.h"
#include "base/format.h"
#include "base/rng.h"
#include "net/http_client.h"
#include "net/sse.h"

namespace deepinfer {
namespace {

struct ServeFlags {
  std::string base_url = "http://127.0.0.1:8000";
  std::string model;
  std::string api_key;
  int num_prompts = 64;
  int max_concurrency = 16;
  double request_rate = 0;  // 0: as fast as max_concurrency allows
  int input_len = 128;
  int output_len = 64;
  int vocab = 1000;
  int64_t seed = 0;
  bool as_json = false;
};

Json CompletionBody(const ServeFlags& flags, int index) {
  Json prompt = Json::Array();
  const auto seed = static_cast<uint64_t>(flags.seed);
  for (TokenId id : SyntheticPrompt(seed, index, flags.input_len, {.vocab = flags.vocab})) {
    prompt.Push(Json::Int(id));
  }
  Json body = Json::Object();
  if (!flags.model.empty()) body.Set("model", Json::String(flags.model));
  body.Set("prompt", std::move(prompt));
  body.Set("max_tokens", Json::Int(flags.output_len));
  body.Set("ignore_eos", Json::Bool(true));
  body.Set("temperature", Json::Double(0.0));
  body.Set("stream", Json::Bool(true));
  body.Set("stream_options", Json::Object()).Set("include_usage", Json::Bool(true));
  return body;
}

Status TakeEvent(const SseEvent& event, RequestTimes* times) {
  if (event.data == "[DONE]") return {};
  DI_ASSIGN(const Json chunk, Json::Parse(event.data));
  if (const Json* error = chunk.Find("error")) return Unavailable(error->Dump());
  if (const Json* usage = chunk.Find("usage"); usage != nullptr && usage->is_object()) {
    DI_ASSIGN(times->tokens, usage->GetInt("completion_tokens", times->tokens));
  }
  const Json* choices = chunk.Find("choices");
  if (choices == nullptr || choices->items().empty()) return {};
  const double now = NowSeconds();
  if (times->first == 0) {
    times->first = now;
  } else {
    times->gaps.push_back(now - times->last);
  }
  times->last = now;
  return {};
}

Status SendOne(const ServeFlags& flags, HttpClient* client, int index, RequestTimes* times) {
  HttpClientRequest request;
  request.method = "POST";
  request.url = flags.base_url + "/v1/completions";
  request.headers.Add("Content-Type", "application/json");
  if (!flags.api_key.empty()) request.headers.Add("Authorization", "Bearer " + flags.api_key);
  request.body = CompletionBody(flags, index).Dump();
  SseParser parser;
  HttpBodySink sink;
  sink.on_piece = [&](std::string_view piece) {
    return parser.Push(piece, [&](const SseEvent& event) { return TakeEvent(event, times); });
  };
  times->submitted = NowSeconds();
  DI_ASSIGN(const HttpClientResponse response, client->Stream(request, sink));
  if (response.status != 200) {
    return Unavailable(Format("status {}: {}", response.status, response.body.substr(0, 256)));
  }
  if (times->first == 0) return Unavailable("the stream ended without a token");
  return {};
}

// Starting times: all at once, or a Poisson process of `request_rate` per second.
std::vector<double> StartTimes(const ServeFlags& flags) {
  std::vector<double> at(static_cast<size_t>(flags.num_prompts), 0.0);
  if (flags.request_rate <= 0) return at;
  double now = 0;
  for (size_t i = 0; i < at.size(); ++i) {
    at[i] = now;
    const auto words =
        Philox4x32(static_cast<uint64_t>(flags.seed), {static_cast<uint32_t>(i), 0, 0, 2});
    now += -std::log(UniformOpen(words[0])) / flags.request_rate;
  }
  return at;
}

std::vector<RequestTimes> RunLoad(const ServeFlags& flags) {
  std::vector<RequestTimes> times(static_cast<size_t>(flags.num_prompts));
  const std::vector<double> start = StartTimes(flags);
  const double begin = NowSeconds();
  std::atomic<int> next{0};
  std::vector<std::jthread> clients;
  for (int c = 0; c < std::min(flags.max_concurrency, flags.num_prompts); ++c) {
    clients.emplace_back([&] {
      HttpClient client;
      for (int i; (i = next.fetch_add(1)) < flags.num_prompts;) {
        const auto slot = static_cast<size_t>(i);
        std::this_thread::sleep_for(
            std::chrono::duration<double>(begin + start[slot] - NowSeconds()));
        const Status status = SendOne(flags, &client, i, &times[slot]);
        times[slot].failed = !status.ok();
        times[slot].error = status.message();
      }
    });
  }
  clients.clear();
  return times;
}

Json Report(const ServeFlags& flags, const std::vector<RequestTimes>& all, double seconds) {
  std::vector<double> ttft, tpot, itl, e2e;
  int64_t tokens = 0, failed = 0;
  for (const RequestTimes& t : all) {
    if (t.failed) {
      if (failed++ == 0) std::fprintf(stderr, "bench serve: %s\n", t.error.c_str());
      continue;
    }
    tokens += t.tokens;
    ttft.push_back((t.first - t.submitted) * 1e3);
    e2e.push_back((t.last - t.submitted) * 1e3);
    if (t.tokens > 1) tpot.push_back((t.last - t.first) * 1e3 / static_cast<double>(t.tokens - 1));
    for (double gap : t.gaps) itl.push_back(gap * 1e3);
  }
  const auto done = static_cast<double>(flags.num_prompts - failed);
  Json out = Json::Object();
  out.Set("completed", Json::Int(flags.num_prompts - failed));
  out.Set("failed", Json::Int(failed));
  out.Set("duration_s", Json::Double(seconds));
  out.Set("request_throughput", Json::Double(done / seconds));
  out.Set("output_throughput", Json::Double(static_cast<double>(tokens) / seconds));
  out.Set("total_token_throughput",
          Json::Double((static_cast<double>(tokens) + done * flags.input_len) / seconds));
  out.Set("ttft_ms", ToJson(Summarize(ttft)));
  out.Set("tpot_ms", ToJson(Summarize(tpot)));
  out.Set("itl_ms", ToJson(Summarize(itl)));
  out.Set("e2el_ms", ToJson(Summarize(e2e)));
  return out;
}

}  // namespace

int RunBenchServe(int argc, char** argv) {
  ServeFlags flags;
  CommandLine line("deepinfer bench serve", "load on a running server");
  line.Add("--base-url", &flags.base_url, "of the server, without /v1");
  line.Add("--model", &flags.model, "model name to ask for; empty: whatever is served");
  line.Add("--api-key", &flags.api_key, "sent as bearer token");
  line.MarkSecret("api-key");
  line.Add("--num-prompts", &flags.num_prompts, "requests in all");
  line.Add("--max-concurrency", &flags.max_concurrency, "requests at once");
  line.Add("--request-rate", &flags.request_rate, "arrivals per second (Poisson); 0: at once");
  line.Add("--input-len", &flags.input_len, "prompt tokens of a request");
  line.Add("--output-len", &flags.output_len, "tokens generated for a request");
  line.Add("--vocab", &flags.vocab, "prompt ids are drawn below this");
  line.Add("--seed", &flags.seed, "of prompts and arrivals");
  line.AddSwitch("--json", &flags.as_json, "print one JSON object");
  if (const std::optional<int> code = line.Parse(argc, argv)) return *code;
  if (flags.num_prompts < 1 || flags.max_concurrency < 1 || flags.max_concurrency > 4096 ||
      flags.input_len < 1 || flags.output_len < 1 || flags.vocab < 1) {
    return FailUsage("bench serve",
                     Invalid("counts and lengths must be 1 or more, --max-concurrency "
                             "1..4096"));
  }
  const double begin = NowSeconds();
  const std::vector<RequestTimes> times = RunLoad(flags);
  const Json report = Report(flags, times, NowSeconds() - begin);
  if (flags.as_json) {
    std::printf("%s\n", report.Dump().c_str());
  } else {
    for (const auto& [key, value] : report.members()) {
      std::printf("%-24s %s\n", key.c_str(), value.Dump().c_str());
    }
  }
  return report.Find("failed")->AsInt().value() == 0 ? kExitOk : kExitInput;
}

}  // namespace deepinfer
