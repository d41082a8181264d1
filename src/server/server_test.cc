#include "server/server.h"

#include <gtest/gtest.h>

#include <future>
#include <map>

#include "base/format.h"
#include "base/json.h"
#include "engine/engine_parts.h"
#include "engine/scripted_runner.h"
#include "net/http_client.h"
#include "net/test_client.h"

namespace deepinfer {
namespace {

constexpr char kPrompt[] = R"("model": "tiny", "prompt": [5, 6, 7], "ignore_eos": true,
                            "return_token_ids": true)";

// A server around a scripted engine; prompts are token ids, since there is no tokenizer.
class ServerTest : public testing::Test {
 protected:
  void StartServer(ServerConfig config = {}, int64_t step_us = 0) {
    config.port = 0;
    config.engine.max_num_seqs = 4;
    config.engine.num_kv_blocks = 512;
    config.engine.max_model_len = 2048;
    server_ = std::make_unique<Server>(config);
    const Status status = server_->Start(
        [this](const Status& loaded) { loaded_.set_value(loaded); },
        [this, config, step_us]() -> Result<std::unique_ptr<ServedModel>> {
          release_.get_future().wait();
          ScriptedRunnerOptions options;
          options.step_us = step_us;
          options.draft_tokens_max = draft_tokens_max_;
          auto served = std::make_unique<ServedModel>();
          DI_ASSIGN(
              served->engine,
              Engine::Create(config.engine, ScriptedParts(config.engine, options, nullptr, {})));
          served->dialect.names = {"tiny", "alias"};
          served->dialect.vocab = served->engine->limits().vocab;
          served->dialect.max_model_len = served->engine->limits().max_model_len;
          served->dialect.created_s = 1;
          return served;
        });
    ASSERT_TRUE(status.ok()) << status.message();
    base_ = Format("http://127.0.0.1:{}", server_->port());
  }
  void Load() {
    release_.set_value();
    released_ = true;
    ASSERT_TRUE(loaded_.get_future().get().ok());
  }
  void StartLoaded(ServerConfig config = {}, int64_t step_us = 0) {
    StartServer(std::move(config), step_us);
    Load();
  }
  ~ServerTest() override {
    if (!released_) release_.set_value();  // the loading thread waits for it
  }

  HttpClientResponse Send(const std::string& method, const std::string& path,
                          const std::string& body = "", const std::string& key = "") {
    HttpClientRequest request;
    request.method = method;
    request.url = base_ + path;
    request.body = body;
    if (!body.empty()) request.headers.Add("Content-Type", "application/json");
    if (!key.empty()) request.headers.Add("Authorization", "Bearer " + key);
    auto response = HttpClient().Send(request);
    EXPECT_TRUE(response.ok()) << response.status().message();
    return response.ok() ? *response : HttpClientResponse();
  }
  Json SendJson(const std::string& method, const std::string& path, const std::string& body = "") {
    const HttpClientResponse response = Send(method, path, body);
    auto json = Json::Parse(response.body);
    EXPECT_TRUE(json.ok()) << response.body;
    return json.ok() ? *json : Json();
  }
  // Value of the first sample that starts with `name` followed by '{'.
  double Metric(const std::string& name, const std::string& label = "") {
    const std::string text = Send("GET", "/metrics").body;
    size_t at = 0;
    while ((at = text.find("\n" + name + "{", at)) != std::string::npos) {
      const std::string line = text.substr(at + 1, text.find('\n', at + 1) - at - 1);
      if (line.find(label) != std::string::npos) return std::stod(line.substr(line.rfind(' ')));
      ++at;
    }
    ADD_FAILURE() << name << label << " is missing";
    return -1;
  }
  template <typename Condition>
  bool Eventually(Condition condition) {
    for (int i = 0; i < 1000; ++i) {
      if (condition()) return true;
      std::this_thread::yield();
    }
    return condition();
  }
  bool WaitIdle() {
    return Eventually([this] {
      const Json health = SendJson("GET", "/health");
      return *health.GetInt("running", 1) + *health.GetInt("waiting", 1) == 0;
    });
  }

  int draft_tokens_max_ = 0;
  bool released_ = false;
  std::promise<void> release_;
  std::promise<Status> loaded_;
  std::unique_ptr<Server> server_;
  std::string base_;
};

TEST_F(ServerTest, AnswersWhileTheModelLoads) {
  StartServer();
  HttpClientResponse health = Send("GET", "/health");
  EXPECT_EQ(health.status, 503);
  EXPECT_NE(health.body.find(R"("status":"loading")"), std::string::npos) << health.body;
  EXPECT_EQ(Send("GET", "/v1/models").status, 503);
  EXPECT_EQ(Send("POST", "/v1/completions", "{}").status, 503);
  EXPECT_EQ(Metric("deepinfer:ready"), 0);
  Load();
  health = Send("GET", "/health");
  EXPECT_EQ(health.status, 200);
  EXPECT_EQ(Send("GET", "/ping").status, 200);
  const Json body = *Json::Parse(health.body);
  EXPECT_EQ(*body.GetString("status", ""), "ok");
  for (const char* key : {"steps", "last_step_age_ms", "running", "waiting"}) {
    ASSERT_NE(body.Find(key), nullptr) << key;
    EXPECT_TRUE(body.Find(key)->is_number()) << key;
  }
  EXPECT_EQ(Metric("deepinfer:ready"), 1);
}

TEST_F(ServerTest, CompletesWholeAndStreamed) {
  StartLoaded();
  const Json whole = SendJson("POST", "/v1/completions",
                              Format("{{{}, \"max_tokens\": 6, \"temperature\": 0}}", kPrompt));
  ASSERT_NE(whole.Find("choices"), nullptr) << whole.Dump();
  EXPECT_EQ(*whole.Find("usage")->GetInt("completion_tokens", 0), 6);
  EXPECT_EQ(*whole.Find("choices")->items()[0].GetString("finish_reason", ""), "length");
  const HttpClientResponse stream =
      Send("POST", "/v1/completions",
           Format("{{{}, \"max_tokens\": 6, \"temperature\": 0, \"stream\": true}}", kPrompt));
  EXPECT_EQ(stream.status, 200);
  EXPECT_TRUE(stream.body.ends_with("data: [DONE]\n\n")) << stream.body;
  EXPECT_EQ(stream.headers.Find("content-type")->substr(0, 17), "text/event-stream");
}

TEST_F(ServerTest, WrongBodiesAre400) {
  StartLoaded();
  for (const std::string& body :
       {std::string("{"), std::string("[]"), std::string("{}"), std::string("\xff"),
        Format("{{{}, \"temperature\": -1}}", kPrompt), Format("{{{}, \"n\": 0}}", kPrompt),
        Format("{{{}, \"max_tokens\": \"x\"}}", kPrompt),
        std::string(R"({"model": "tiny", "prompt": [99999]})"),
        std::string(R"({"model": "tiny", "prompt": []})"), std::string(200, '[')}) {
    const HttpClientResponse response = Send("POST", "/v1/completions", body);
    EXPECT_EQ(response.status, 400) << body << response.body;
    const auto json = Json::Parse(response.body);
    ASSERT_TRUE(json.ok()) << response.body;
    EXPECT_NE(json->Find("error"), nullptr) << response.body;
  }
  EXPECT_EQ(Send("POST", "/v1/completions", R"({"model": "other", "prompt": [5]})").status, 404);
  EXPECT_TRUE(WaitIdle());
}

TEST_F(ServerTest, OtherMediaTypesAre415) {
  StartLoaded();
  HttpClientRequest request;
  request.method = "POST";
  request.url = base_ + "/v1/completions";
  request.body = Format("{{{}}}", kPrompt);
  EXPECT_EQ(HttpClient().Send(request)->status, 415);
  request.headers.Add("Content-Type", "text/plain");
  EXPECT_EQ(HttpClient().Send(request)->status, 415);
}

TEST_F(ServerTest, KeysGuardEveryRouteButTheOpenOnes) {
  ServerConfig config;
  config.api_keys = {"one", "two"};
  StartLoaded(config);
  for (const char* path : {"/health", "/ping", "/metrics"}) {
    EXPECT_EQ(Send("GET", path).status, 200) << path;
  }
  for (const char* path : {"/version", "/v1/models", "/v1/models/tiny", "/unknown", "/"}) {
    EXPECT_EQ(Send("GET", path).status, 401) << path;
    EXPECT_EQ(Send("GET", path, "", "three").status, 401) << path;
  }
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"}) {
    EXPECT_EQ(Send("POST", path, "{}").status, 401) << path;
  }
  EXPECT_EQ(Send("GET", "/v1/models", "", "two").status, 200);
  // A Host or target that names another place changes nothing.
  RawClient client(server_->port());
  client.Send("GET http://x/health/../v1/models HTTP/1.1\r\nHost: /health\r\n\r\n");
  EXPECT_TRUE(client.ReadResponse().starts_with("HTTP/1.1 400"));
  RawClient absolute(server_->port());
  absolute.Send("GET http://health/v1/models HTTP/1.1\r\nHost: health\r\n\r\n");
  EXPECT_TRUE(absolute.ReadResponse().starts_with("HTTP/1.1 401"));
}

TEST_F(ServerTest, ListsModels) {
  StartLoaded();
  const Json list = SendJson("GET", "/v1/models");
  ASSERT_EQ(list.Find("data")->items().size(), 2);
  EXPECT_EQ(*list.Find("data")->items()[0].GetString("id", ""), "tiny");
  EXPECT_EQ(*SendJson("GET", "/v1/models/alias").GetString("id", ""), "alias");
  EXPECT_EQ(Send("GET", "/v1/models/none").status, 404);
}

TEST_F(ServerTest, ClientThatLeavesFreesItsBlocks) {
  StartLoaded({}, 1000);
  for (const char* stream : {"true", "false"}) {
    const std::string body =
        Format("{{{}, \"max_tokens\": 2000, \"stream\": {}}}", kPrompt, stream);
    RawClient client(server_->port());
    client.Send(
        Format("POST /v1/completions HTTP/1.1\r\nHost: a\r\n"
               "Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
               body.size(), body));
    ASSERT_TRUE(
        Eventually([this] { return *SendJson("GET", "/health").GetInt("running", 0) == 1; }));
    client.Reset();
    EXPECT_TRUE(WaitIdle()) << stream;
    // The step in flight may hold its blocks a moment longer than the request lives.
    EXPECT_TRUE(Eventually([this] { return Metric("deepinfer:kv_blocks", "used") == 0; }));
  }
  EXPECT_EQ(Metric("vllm:request_success_total", "abort"), 2);
  EXPECT_EQ(Metric("deepinfer:http_responses_total", "499"), 2);
}

TEST_F(ServerTest, MetricsKeepTheirInvariants) {
  StartLoaded();
  for (int i = 1; i <= 20; ++i) {
    Send("POST", "/v1/completions",
         Format("{{{}, \"max_tokens\": {}, \"n\": {}}}", kPrompt, i, 1 + i % 3));
  }
  Send("POST", "/v1/completions", R"({"model": "tiny", "prompt": [99999]})");
  double finished = 0;
  for (const char* reason : {"stop", "length", "abort", "error"}) {
    finished += Metric("vllm:request_success_total", Format("\"{}\"", reason));
  }
  int samples = 0;
  int tokens = 0;
  for (int i = 1; i <= 20; ++i) {
    samples += 1 + i % 3;
    tokens += i * (1 + i % 3);
  }
  EXPECT_EQ(finished, samples);
  EXPECT_EQ(Metric("vllm:generation_tokens_total"), tokens);
  // vLLM counts each sample as a request here and in the reasons.
  EXPECT_EQ(Metric("vllm:time_to_first_token_seconds_count"), samples);
  EXPECT_EQ(Metric("vllm:e2e_request_latency_seconds_count"), 20);
  EXPECT_EQ(Metric("vllm:prompt_tokens_total"), 60);
  EXPECT_EQ(Metric("deepinfer:http_responses_total", "\"200\""), 20);
  EXPECT_EQ(Metric("deepinfer:http_responses_total", "\"400\""), 1);
}

TEST_F(ServerTest, MetricsTellWhatSpeculationDid) {
  draft_tokens_max_ = 3;
  StartLoaded();
  for (int i = 0; i < 4; ++i) {
    const Json answer = SendJson("POST", "/v1/completions",
                                 Format("{{\"model\": \"tiny\", \"prompt\": [{}, 7], "
                                        "\"max_tokens\": 100, \"ignore_eos\": true}}",
                                        5 + i));
    EXPECT_NE(answer.Find("choices"), nullptr) << answer.Dump();
  }
  EXPECT_EQ(Metric("vllm:generation_tokens_total"), 400);
  const double rows = Metric("vllm:spec_decode_num_drafts_total");
  const double drafts = Metric("vllm:spec_decode_num_draft_tokens_total");
  const double accepted = Metric("vllm:spec_decode_num_accepted_tokens_total");
  EXPECT_GT(rows, 0);
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, drafts);
  EXPECT_LE(drafts, 3 * rows);
  EXPECT_LE(rows + accepted, 400);  // what a verification emits, surplus at the end left out
  double sum = 0;
  double before = rows;
  for (int place = 0; place < 3; ++place) {
    const double at = Metric("vllm:spec_decode_num_accepted_tokens_per_pos_total",
                             Format("position=\"{}\"", place));
    EXPECT_LE(at, before) << place;  // a draft counts only behind accepted ones
    before = at;
    sum += at;
  }
  EXPECT_EQ(sum, accepted);
  EXPECT_EQ(Metric("vllm:spec_decode_num_accepted_tokens_per_pos_total", "position=\"3\""), 0);
}

TEST_F(ServerTest, StuckStepsAreSeen) {
  ServerConfig config;
  config.watchdog_timeout_ms = 50;
  StartLoaded(config, 4'000'000);
  EXPECT_FALSE(server_->stuck());
  const std::string body = Format("{{{}, \"max_tokens\": 1}}", kPrompt);
  RawClient client(server_->port());
  client.Send(
      Format("POST /v1/completions HTTP/1.1\r\nHost: a\r\n"
             "Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
             body.size(), body));
  bool seen = false;
  // The step takes four seconds; requests to /health pace this loop.
  for (int i = 0; i < 100'000 && !seen; ++i) {
    const HttpClientResponse health = Send("GET", "/health");
    seen = health.status == 503 && health.body.find("\"stuck\"") != std::string::npos;
  }
  EXPECT_TRUE(seen);
  EXPECT_TRUE(client.ReadResponse().starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(Eventually([this] { return Send("GET", "/health").status == 200; }));
}

TEST_F(ServerTest, RequestsPastTheirTimeEnd) {
  ServerConfig config;
  config.request_timeout_ms = 50;
  StartLoaded(config, 5000);
  const HttpClientResponse response =
      Send("POST", "/v1/completions", Format("{{{}, \"max_tokens\": 2000}}", kPrompt));
  EXPECT_EQ(response.status, 504) << response.body;
}

TEST_F(ServerTest, DrainLetsRunningRequestsFinish) {
  StartLoaded({}, 1000);
  const std::string body = Format("{{{}, \"max_tokens\": 200, \"stream\": true}}", kPrompt);
  RawClient client(server_->port());
  client.Send(
      Format("POST /v1/completions HTTP/1.1\r\nHost: a\r\n"
             "Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
             body.size(), body));
  client.ReadUntil("data: ");
  auto drain = std::async(std::launch::async, [this] { return server_->Drain(20'000); });
  const std::string rest = client.ReadAll(20'000);
  EXPECT_NE(rest.find("data: [DONE]"), std::string::npos) << rest.substr(rest.size() / 2);
  client.Close();
  EXPECT_TRUE(drain.get());
}

TEST_F(ServerTest, DrainCutsWhatTakesTooLong) {
  StartLoaded({}, 20'000);
  const std::string body = Format("{{{}, \"max_tokens\": 2000, \"stream\": true}}", kPrompt);
  RawClient client(server_->port());
  client.Send(
      Format("POST /v1/completions HTTP/1.1\r\nHost: a\r\n"
             "Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
             body.size(), body));
  client.ReadUntil("data: ");
  EXPECT_FALSE(server_->Drain(30));
  EXPECT_EQ(client.ReadAll().find("[DONE]"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer
