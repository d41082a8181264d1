#include "tests/api/test_server.h"

#include <algorithm>
#include <chrono>

#include "api/api_test_util.h"
#include "base/format.h"
#include "engine/engine_parts.h"
#include "engine/scripted_runner.h"

namespace deepinfer {
namespace {

constexpr auto kPatience = std::chrono::seconds(20);

// "name=value" words; a value in quotes is a JSON string and may hold blanks.
Result<std::vector<std::pair<std::string, Json>>> Words(const std::string& text) {
  std::vector<std::pair<std::string, Json>> words;
  size_t at = 0;
  while ((at = text.find_first_not_of(' ', at)) != std::string::npos) {
    const size_t equals = text.find('=', at);
    if (equals == std::string::npos) return Invalid(Format("\"{}\": no value", text.substr(at)));
    const std::string name = text.substr(at, equals - at);
    size_t end = equals + 1;
    if (end < text.size() && text[end] == '"') {
      for (++end; end < text.size() && text[end] != '"'; ++end) end += text[end] == '\\' ? 1 : 0;
      ++end;
    } else {
      end = std::min(text.find(' ', end), text.size());
    }
    DI_ASSIGN(Json value, Json::Parse(text.substr(equals + 1, end - equals - 1)));
    words.emplace_back(name, std::move(value));
    at = end;
  }
  return words;
}

}  // namespace

struct ApiTestServer::Options {
  ServerConfig config;
  ScriptedRunnerOptions runner;
  TinyText text = MakeTinyText();
  SamplingDefaults defaults;
  std::string script;
  bool loading = false;
  bool tokenizer = true;
  bool chat_template = true;

  Status Apply(const std::string& words);
  bool ApplyText(const std::string& name, const Json& value);
  Result<std::unique_ptr<ServedModel>> MakeModel();
};

bool ApiTestServer::Options::ApplyText(const std::string& name, const Json& value) {
  if (name == "api_key") {
    config.api_keys.push_back(value.string());
  } else if (name == "origin") {
    config.allowed_origins.push_back(value.string());
  } else if (name == "script") {
    script = value.string();
  } else if (name == "loading") {
    loading = *value.AsBool();
  } else if (name == "tokenizer") {
    tokenizer = *value.AsBool();
  } else if (name == "chat_template") {
    chat_template = *value.AsBool();
  } else if (name == "format") {
    if (value.string() == "hermes") text = MakeTinyText(TinyTemplate::kHermes);
    if (value.string() == "llama") text = MakeTinyText(TinyTemplate::kLlama);
    text.prompt_profile = FindPromptProfile(value.string());
  } else if (name == "usage_style") {
    config.usage_style = value.string();
  } else if (name == "prefix_caching") {
    config.engine.enable_prefix_caching = *value.AsBool();
  } else if (name == "strict_api") {
    config.strict_api = *value.AsBool();
  } else if (name == "trust_user_special_tokens") {
    config.trust_user_special_tokens = *value.AsBool();
  } else if (name == "temperature") {
    defaults.temperature = static_cast<float>(*value.AsDouble());
  } else {
    return false;
  }
  return true;
}

Status ApiTestServer::Options::Apply(const std::string& words) {
  config.port = 0;
  config.engine.max_num_seqs = 4;
  config.engine.max_model_len = 100;
  config.engine.num_kv_blocks = 64;
  runner.vocab = kTinyVocab;
  DI_ASSIGN(const auto parsed, Words(words));
  for (const auto& [name, value] : parsed) {
    if (ApplyText(name, value)) continue;
    DI_ASSIGN(const int64_t number, value.AsInt());
    const auto small = static_cast<int>(number);
    EngineConfig& engine = config.engine;
    const std::pair<const char*, int*> ints[] = {
        {"max_num_seqs", &engine.max_num_seqs},
        {"max_model_len", &engine.max_model_len},
        {"max_logprobs", &engine.max_logprobs},
        {"max_concurrent_requests", &config.max_concurrent_requests},
        {"stream_interval", &config.stream_interval},
        {"nan_token", &runner.nan_token}};
    const std::pair<const char*, int64_t*> longs[] = {
        {"num_kv_blocks", &engine.num_kv_blocks},
        {"max_num_queued_reqs", &engine.max_num_queued_reqs},
        {"max_num_queued_tokens", &engine.max_num_queued_tokens},
        {"max_body_bytes", &config.max_body_bytes},
        {"max_header_bytes", &config.max_header_bytes},
        {"request_timeout_ms", &config.request_timeout_ms},
        {"watchdog_timeout_ms", &config.watchdog_timeout_ms},
        {"max_stored_responses", &config.max_stored_responses},
        {"max_stored_response_bytes", &config.max_stored_response_bytes},
        {"step_us", &runner.step_us}};
    bool known = false;
    for (const auto& [key, place] : ints) {
      if (name == key) *place = small;
      known = known || name == key;
    }
    for (const auto& [key, place] : longs) {
      if (name == key) *place = number;
      known = known || name == key;
    }
    if (name == "max_tokens") defaults.max_tokens = small;
    if (!known && name != "max_tokens") return Invalid(Format("no option \"{}\"", name));
  }
  runner.script = text.tokenizer->Encode(script, {.add_special_tokens = false});
  return {};
}

Result<std::unique_ptr<ServedModel>> ApiTestServer::Options::MakeModel() {
  auto served = std::make_unique<ServedModel>();
  const Tokenizer* used = tokenizer ? text.tokenizer.get() : nullptr;
  DI_ASSIGN(served->engine,
            Engine::Create(config.engine, ScriptedParts(config.engine, runner, used, {kEnd})));
  served->dialect = text.Context();
  served->dialect.tokenizer = used;
  if (!chat_template) served->dialect.chat_template = nullptr;
  if (!tokenizer || !chat_template) served->dialect.output = {};
  served->dialect.max_model_len = served->engine->limits().max_model_len;
  served->dialect.defaults = defaults;
  served->dialect.defaults.top_logprobs_max = served->engine->limits().max_logprobs;
  served->dialect.stream_interval = config.stream_interval;
  served->responses = MakeResponseStore(config);
  served->dialect.responses = served->responses.get();
  if (config.usage_style == "deepseek") served->dialect.usage_style = UsageStyle::kDeepSeek;
  if (config.strict_api) {
    served->dialect.unknown_fields = DialectContext::UnknownFields::kRefuse;
  }
  served->dialect.trust = config.trust_user_special_tokens ? SpecialTokenTrust::kEverywhere
                                                           : SpecialTokenTrust::kTemplate;
  return served;
}

ApiTestServer::ApiTestServer() : options_(std::make_unique<Options>()) {}

ApiTestServer::~ApiTestServer() {
  held_.clear();
  if (!released_) release_.set_value();  // the loading thread waits for it
  server_.reset();
}

Result<std::unique_ptr<ApiTestServer>> ApiTestServer::Start(const std::string& options) {
  std::unique_ptr<ApiTestServer> self(new ApiTestServer());
  DI_TRY(self->options_->Apply(options));
  self->server_ = std::make_unique<Server>(self->options_->config);
  DI_TRY(self->server_->Start(
      [server = self.get()](const Status& loaded) { server->loaded_.set_value(loaded); },
      [server = self.get()]() -> Result<std::unique_ptr<ServedModel>> {
        server->release_.get_future().wait();
        return server->options_->MakeModel();
      }));
  if (!self->options_->loading) DI_TRY(self->Release());
  return self;
}

Status ApiTestServer::Release() {
  release_.set_value();
  released_ = true;
  return loaded_.get_future().get();
}

Result<HttpClientResponse> ApiTestServer::Send(const ApiExchange& exchange) {
  HttpClientRequest request;
  request.method = exchange.method;
  DI_ASSIGN(const std::string target, ExpandBody(exchange.target));
  request.url = Format("http://127.0.0.1:{}{}", server_->port(), target);
  DI_ASSIGN(request.body, ExpandBody(exchange.body));
  bool typed = exchange.body.empty();
  for (const auto& [name, value] : exchange.headers) {
    typed = typed || EqualsIgnoreCase(name, "content-type");
    DI_ASSIGN(std::string expanded, ExpandBody(value));
    if (!expanded.empty()) request.headers.Add(name, std::move(expanded));
  }
  if (!typed) request.headers.Add("Content-Type", "application/json");
  return client_.Send(request);
}

Result<ApiTestServer::Load> ApiTestServer::ReadLoad() {
  ApiExchange health;
  health.method = "GET";
  health.target = "/health";
  DI_ASSIGN(const HttpClientResponse response, Send(health));
  DI_ASSIGN(const Json body, Json::Parse(response.body));
  Load load;
  DI_ASSIGN(load.running, body.GetInt("running", 0));
  DI_ASSIGN(load.waiting, body.GetInt("waiting", 0));
  return load;
}

// A request that still waits although it could run would count against the queue's limit for the
// next one, so what can run must run.
Status ApiTestServer::AwaitUnfinished(int64_t count) {
  const int64_t running = std::min<int64_t>(count, options_->config.engine.max_num_seqs);
  const auto end = std::chrono::steady_clock::now() + kPatience;
  Load now;
  while (std::chrono::steady_clock::now() < end) {
    DI_ASSIGN(now, ReadLoad());
    if (now.running == running && now.waiting == count - running) return {};
  }
  return Internal(Format("{} requests run and {} wait, {} and {} were expected", now.running,
                         now.waiting, running, count - running));
}

Status ApiTestServer::Hold(const ApiExchange& exchange) {
  DI_ASSIGN(const std::string body, ExpandBody(exchange.body));
  DI_ASSIGN(const Load before, ReadLoad());
  RawClient& client = held_.emplace_back(server_->port());
  client.Send(
      Format("{} {} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
             "Content-Length: {}\r\n\r\n{}",
             exchange.method, exchange.target, body.size(), body));
  return AwaitUnfinished(before.running + before.waiting + 1);
}

Status ApiTestServer::Leave() {
  for (RawClient& client : held_) client.Reset();
  held_.clear();
  return AwaitUnfinished(0);
}

}  // namespace deepinfer
