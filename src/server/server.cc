#include "server/server.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "api/apply_template.h"
#include "api/embeddings.h"
#include "api/llama_server.h"
#include "api/messages.h"
#include "api/models.h"
#include "api/responses.h"
#include "api/tokenize.h"
#include "base/format.h"
#include "base/json.h"
#include "base/logging.h"
#include "deepinfer/version.h"
#include "server/batch_routes.h"
#include "server/error_response.h"
#include "server/stored_responses.h"

namespace deepinfer {

namespace {

HttpServerConfig HttpConfigOf(const ServerConfig& config) {
  HttpServerConfig http;
  http.host = config.host;
  http.port = config.port;
  http.io_threads = config.http_threads;
  http.connections_max = config.max_connections;
  http.requests_in_flight_max = config.max_concurrent_requests;
  http.header_bytes_max = config.max_header_bytes;
  http.body_bytes_max = config.max_body_bytes;
  http.body_bytes_in_flight_max = config.max_body_bytes_in_flight;
  http.header_timeout_ms = config.header_timeout_ms;
  http.body_timeout_ms = config.body_timeout_ms;
  http.idle_timeout_ms = config.idle_timeout_ms;
  http.write_stall_timeout_ms = config.write_timeout_ms;
  http.stream_keep_alive_ms = config.sse_ping_interval_ms;
  http.stream_buffer_bytes_max = config.max_stream_buffer_bytes;
  http.cors_origins = config.allowed_origins;
  return http;
}

// Tokenising is short next to generating: a few threads keep up with many requests. Two at least,
// so that one giant prompt does not hold up everybody.
int PrepThreads(int configured) {
  if (configured > 0) return configured;
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(cores / 4, 2, 8);
}

HttpResponse JsonResponse(int status, const Json& body) {
  return {status, "application/json", {}, body.Dump()};
}

HttpResponse Respond(const Result<Json>& answer, ErrorShape shape = ErrorShape::kOpenAi,
                     const std::string& request_id = {}) {
  if (!answer.ok()) return ErrorResponse(answer.status(), shape, request_id);
  HttpResponse response = JsonResponse(200, *answer);
  AddRequestId(shape, request_id, &response.headers);
  return response;
}

constexpr std::string_view kModelsPath = "/v1/models";
constexpr char kFilesPath[] = "/v1/files";

}  // namespace

Server::Server(ServerConfig config)
    : config_(std::move(config)),
      auth_(config_.api_keys),
      router_(&auth_, [this](int status, const std::string& message, const HttpRequest& head) {
        return CountedError(status, message, ErrorShapeOf(head.path), head.request_id);
      }) {
  AddRoutes();
}

Server::~Server() {
  Drain(0);
  if (loading_.joinable()) loading_.join();
}

Status Server::Start(std::function<void(const Status&)> on_loaded) {
  return Start(std::move(on_loaded), [this] { return LoadServedModel(config_); });
}

Status Server::Start(std::function<void(const Status&)> on_loaded, Loader loader) {
  prep_ = std::make_unique<TaskPool>(PrepThreads(config_.prep_threads),
                                     static_cast<size_t>(config_.max_num_queued_preps));
  inference_ = std::make_unique<InferenceRoute>(
      InferenceRoute::Options{.request_timeout_ms = config_.request_timeout_ms,
                              .prep = prep_.get(),
                              .counters = &counters_});
  if (!config_.batch_dir.empty()) {
    DI_ASSIGN(batches_, OpenBatches(config_));
  }
  http_ = std::make_unique<HttpServer>(
      HttpConfigOf(config_),
      HttpHooks{[this](const HttpRequest& head) { return router_.Admit(head); },
                [this](HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
                  router_.Handle(std::move(request), std::move(writer));
                },
                [this](int status, const std::string& message, const HttpRequest& head) {
                  return CountedError(status, message, ErrorShapeOf(head.path), head.request_id);
                }});
  DI_TRY(http_->Start());
  loading_ = std::thread([this, on_loaded = std::move(on_loaded), loader = std::move(loader)] {
    Result<std::unique_ptr<ServedModel>> loaded = loader();
    if (loaded.ok()) {
      owned_ = *std::move(loaded);
      served_.store(owned_.get(), std::memory_order_release);
      if (batches_ != nullptr) batches_->Start(*owned_, prep_.get());
    }
    on_loaded(loaded.status());
  });
  return {};
}

int Server::port() const { return http_->port(); }

bool Server::Drain(int64_t patience_ms) {
  draining_ = true;
  if (prep_ == nullptr) return true;
  if (batches_ != nullptr) batches_->Stop();  // the next start goes on with them
  const bool clean = http_->Drain(patience_ms);
  // No request arrives any more; those that were cut leave the engine, then the prep threads.
  if (const ServedModel* served = served_) {
    if (Status status = served->engine->Drain(0); !status.ok()) {
      LogInfo("shutdown: {}", status.message());
    }
  }
  prep_.reset();
  return clean;
}

bool Server::stuck() const {
  const ServedModel* served = served_;
  if (served == nullptr) return false;
  const EngineStats stats = served->engine->Stats();
  return stats.running + stats.waiting > 0 &&
         stats.last_step_age_us > config_.watchdog_timeout_ms * 1000;
}

void Server::AddRoutes() {
  using Access = Route::Access;
  using Limit = HttpAdmission::Limit;
  const auto health = [this](HttpRequest, std::shared_ptr<ResponseWriter> writer) {
    Health(*writer);
  };
  for (const char* path : {"/health", "/v1/health", "/ping"}) {
    router_.Add({"GET", path, health, Access::kPublic, Limit::kExempt});
  }
  router_.Add({"GET", "/metrics",
               [this](HttpRequest, std::shared_ptr<ResponseWriter> writer) { Metrics(*writer); },
               Access::kPublic, Limit::kExempt});
  router_.Add({"GET", "/version", [this](HttpRequest, std::shared_ptr<ResponseWriter> writer) {
                 Json body = Json::Object();
                 body.Set("version", Json::String(kVersion));
                 Reply(*writer, JsonResponse(200, body));
               }});
  const auto models = [this](HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
    const ServedModel* served = ServedOr503(request, *writer);
    if (served == nullptr) return;
    const bool anthropic = request.headers.Find("anthropic-version") != nullptr;
    const DialectContext& dialect = served->dialect;
    if (request.path == kModelsPath) {
      Reply(*writer,
            JsonResponse(200, anthropic ? AnthropicModelList(dialect) : ModelList(dialect)));
      return;
    }
    const std::string_view name = std::string_view(request.path).substr(kModelsPath.size() + 1);
    Reply(*writer, anthropic ? Respond(AnthropicModelCard(dialect, name), ErrorShape::kAnthropic)
                             : Respond(ModelCard(dialect, name)));
  };
  router_.Add({"GET", "/v1/models", models});
  router_.Add({"GET", "/v1/models/*", models});
  AddPrepared("/tokenize", Tokenize);
  AddPrepared("/detokenize", Detokenize);
  AddPrepared("/apply-template", ApplyTemplate);
  AddInference("/completion", ParseLlamaCompletion);
  AddView("/props", LlamaProps);
  AddView("/slots", LlamaSlots);
  AddInference("/v1/chat/completions", ParseChatCompletion);
  AddInference("/v1/completions", ParseCompletion);
  AddInference("/v1/embeddings", ParseEmbeddings);
  AddResponses();
  if (!config_.batch_dir.empty()) AddBatches();
  for (const char* path : {"/v1/messages", "/anthropic/v1/messages"}) {
    AddInference(path, ParseMessages);
  }
  for (const char* path : {"/v1/messages/count_tokens", "/anthropic/v1/messages/count_tokens"}) {
    AddPrepared(path, CountMessageTokens);
  }
}

void Server::AddView(const char* path, LlamaView view) {
  router_.Add(
      {"GET", path, [this, view](HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
         const ServedModel* served = ServedOr503(request, *writer);
         if (served == nullptr) return;
         const SlotCounts slots = {.total = served->engine->limits().max_num_seqs,
                                   .running = served->engine->Stats().running};
         Reply(*writer, JsonResponse(200, view(served->dialect, slots)));
       }});
}

void Server::AddResponses() {
  AddInference("/v1/responses", ParseResponses);
  AddPrepared("/v1/responses/input_tokens", CountResponseTokens);
  const auto stored = [this](HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
    const ServedModel* served = ServedOr503(request, *writer);
    if (served == nullptr) return;
    Reply(*writer, Respond(AnswerStoredResponse(request, served->responses.get())));
  };
  for (const char* method : {"GET", "DELETE", "POST"}) {
    router_.Add({method, "/v1/responses/*", stored});
  }
}

void Server::AddBatches() {
  const auto add = [this](const char* method, const char* path) {
    router_.Add({method, path, [this](HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
                   const bool posts = request.method == "POST";
                   const bool form = posts && request.path == kFilesPath;
                   if (form && !IsOwnForm(request, *writer)) return;
                   if (posts && !form && !request.body.empty() && !IsJson(request, *writer)) return;
                   Prepare(std::move(request), std::move(writer), [this](const HttpRequest& asked) {
                     return AnswerBatches(asked, batches_.get());
                   });
                 }});
  };
  for (const char* method : {"GET", "POST"}) {
    add(method, kFilesPath);
    add(method, "/v1/batches");
    add(method, "/v1/batches/*");
  }
  add("GET", "/v1/files/*");
  add("DELETE", "/v1/files/*");
}

void Server::Prepare(HttpRequest request, std::shared_ptr<ResponseWriter> writer,
                     std::function<HttpResponse(const HttpRequest&)> answer) const {
  const ErrorShape shape = ErrorShapeOf(request.path);
  auto task_writer = writer;
  Task task([this, request = std::move(request), writer = std::move(task_writer),
             answer = std::move(answer)] {
    if (!writer->closed()) Reply(*writer, answer(request));
  });
  if (prep_->TrySubmit(std::move(task)) == PushResult::kOk) return;
  counters_.AddOverload();
  Reply(*writer, ErrorResponse(Unavailable("too many requests wait; retry later"), shape,
                               writer->request_id()));
}

void Server::Health(ResponseWriter& writer) const {
  const ServedModel* served = served_;
  Json body = Json::Object();
  const char* status = "ok";
  EngineStats stats;
  if (served != nullptr) stats = served->engine->Stats();
  if (draining_) {
    status = "draining";
  } else if (served == nullptr) {
    status = "loading";
  } else if (stuck()) {
    status = "stuck";
  }
  body.Set("status", Json::String(status));
  if (served != nullptr) {
    body.Set("steps", Json::Int(stats.steps));
    body.Set("last_step_age_ms", Json::Int(stats.last_step_age_us / 1000));
    body.Set("running", Json::Int(stats.running));
    body.Set("waiting", Json::Int(stats.waiting));
  }
  HttpResponse response = JsonResponse(std::string_view(status) == "ok" ? 200 : 503, body);
  if (response.status == 503) response.headers.Add("Retry-After", "1");
  writer.Send(std::move(response));
}

void Server::Metrics(ResponseWriter& writer) const {
  MetricsSnapshot snapshot;
  if (const ServedModel* served = served_) {
    snapshot.loaded = true;
    snapshot.model_name = served->dialect.names[0];
    snapshot.engine = served->engine->Stats();
    snapshot.limits = served->engine->limits();
    snapshot.prefix_caching = config_.engine.enable_prefix_caching;
  }
  snapshot.http = http_->stats();
  snapshot.counters = &counters_;
  writer.Send({200, "text/plain; version=0.0.4; charset=utf-8", {}, RenderMetrics(snapshot)});
}

// The model, or nullptr after a 503 was sent.
const ServedModel* Server::ServedOr503(const HttpRequest& request, ResponseWriter& writer) const {
  const ServedModel* served = served_.load(std::memory_order_acquire);
  if (served != nullptr && !draining_) return served;
  Reply(writer, ErrorResponse(Unavailable(draining_ ? "the server is shutting down"
                                                    : "the model is still loading"),
                              ErrorShapeOf(request.path), writer.request_id()));
  return nullptr;
}

void Server::AddInference(const char* path, InferenceRoute::Parser parser) {
  router_.Add(
      {"POST", path, [this, parser](HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
         const ServedModel* served = ServedOr503(request, *writer);
         if (served == nullptr || !IsJson(request, *writer)) return;
         inference_->Handle(parser, *served, std::move(request), std::move(writer));
       }});
}

void Server::AddPrepared(const char* path, PreparedAnswer answer) {
  router_.Add(
      {"POST", path, [this, answer](HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
         const ServedModel* served = ServedOr503(request, *writer);
         if (served == nullptr || !IsJson(request, *writer)) return;
         Prepare(std::move(request), std::move(writer), [answer, served](const HttpRequest& asked) {
           Result<Json> body = Json::Parse(asked.body);
           if (body.ok()) body = answer(*body, served->dialect);
           return Respond(body, ErrorShapeOf(asked.path), asked.request_id);
         });
       }});
}

// Browsers send any other type across origins without asking first, so nothing else is read.
bool Server::IsJson(const HttpRequest& request, ResponseWriter& writer) const {
  if (!IsPlain(request, writer)) return false;
  const std::string* type = request.headers.Find("content-type");
  const std::string_view media = type == nullptr
                                     ? std::string_view()
                                     : std::string_view(*type).substr(0, type->find_first_of("; "));
  if (EqualsIgnoreCase(media, "application/json")) return true;
  Reply(writer, HttpError(415,
                          Format("the body must be sent as \"Content-Type: "
                                 "application/json\", not \"{:.64}\"",
                                 type == nullptr ? "" : *type),
                          ErrorShapeOf(request.path), writer.request_id()));
  return false;
}

// False after a 415 was sent: a body that is packed is not unpacked.
bool Server::IsPlain(const HttpRequest& request, ResponseWriter& writer) const {
  const std::string* encoding = request.headers.Find("content-encoding");
  if (encoding == nullptr || EqualsIgnoreCase(*encoding, "identity")) return true;
  HttpResponse refusal = HttpError(
      415,
      Format("\"Content-Encoding: {:.64}\" is not supported: send the body as it is", *encoding),
      ErrorShapeOf(request.path), writer.request_id());
  refusal.headers.Add("Accept-Encoding", "identity");
  Reply(writer, std::move(refusal));
  return false;
}

// They send forms without asking as well, and say then where the page is from.
bool Server::IsOwnForm(const HttpRequest& request, ResponseWriter& writer) const {
  if (!IsPlain(request, writer)) return false;
  const std::string* origin = request.headers.Find("origin");
  if (origin == nullptr) return true;
  for (const std::string& allowed : config_.allowed_origins) {
    if (allowed == "*" || allowed == *origin) return true;
  }
  Reply(writer,
        ErrorResponse({StatusCode::kDenied,
                       Format("forms of {:.128} are not taken; see --allowed-origins", *origin)}));
  return false;
}

HttpResponse Server::CountedError(int status, const std::string& message, ErrorShape shape,
                                  const std::string& request_id) const {
  counters_.AddResponse(status);
  return HttpError(status, message, shape, request_id);
}

void Server::Reply(ResponseWriter& writer, HttpResponse response) const {
  counters_.AddResponse(response.status);
  writer.Send(std::move(response));
}

}  // namespace deepinfer
