// `deepinfer serve`: the HTTP edge, the routes and the engine of one model, put together.
// Listens at once, loads the model on its own thread. Made and ended by one control thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "api/llama_server.h"
#include "base/task_pool.h"
#include "deepinfer/server_config.h"
#include "net/http_server.h"
#include "server/auth.h"
#include "server/batch_service.h"
#include "server/inference_route.h"
#include "server/metrics.h"
#include "server/router.h"
#include "server/served_model.h"

namespace deepinfer {

class Server {
 public:
  using Loader = std::function<Result<std::unique_ptr<ServedModel>>()>;

  explicit Server(ServerConfig config);
  // Drains without patience.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Listens, then loads in the background; /health answers 503 until that is done. `on_loaded`
  // runs once on the loading thread. Tests pass their own loader.
  Status Start(std::function<void(const Status&)> on_loaded);
  Status Start(std::function<void(const Status&)> on_loaded, Loader loader);
  int port() const;

  // From now on /health answers 503 and new work is refused; running requests may finish for
  // `patience_ms`. Returns when all is over. True when nothing had to be cancelled.
  bool Drain(int64_t patience_ms);

  // Work waits and no step was finished for watchdog_timeout_ms.
  bool stuck() const;

 private:
  void AddRoutes();
  void AddInference(const char* path, InferenceRoute::Parser parser);
  using LlamaView = Json (*)(const DialectContext& context, const SlotCounts& slots);
  void AddView(const char* path, LlamaView view);
  void AddResponses();
  void AddBatches();
  bool IsPlain(const HttpRequest& request, ResponseWriter& writer) const;
  // False after a refusal was sent: the form of another site.
  bool IsOwnForm(const HttpRequest& request, ResponseWriter& writer) const;
  // Runs `answer` on a prep thread.
  void Prepare(HttpRequest request, std::shared_ptr<ResponseWriter> writer,
               std::function<HttpResponse(const HttpRequest&)> answer) const;
  void Health(ResponseWriter& writer) const;
  void Metrics(ResponseWriter& writer) const;
  // For routes that tokenise: `answer` runs on a prep thread.
  using PreparedAnswer = Result<Json> (*)(const Json& body, const DialectContext& context);
  void AddPrepared(const char* path, PreparedAnswer answer);
  const ServedModel* ServedOr503(const HttpRequest& request, ResponseWriter& writer) const;
  // False after a 415 was sent.
  bool IsJson(const HttpRequest& request, ResponseWriter& writer) const;
  HttpResponse CountedError(int status, const std::string& message, ErrorShape shape,
                            const std::string& request_id) const;
  void Reply(ResponseWriter& writer, HttpResponse response) const;

  const ServerConfig config_;
  const Auth auth_;
  Router router_;
  mutable ServerCounters counters_;
  std::unique_ptr<TaskPool> prep_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<InferenceRoute> inference_;
  std::unique_ptr<BatchService> batches_;  // nullptr: none
  std::unique_ptr<ServedModel> owned_;
  std::atomic<const ServedModel*> served_{nullptr};  // set once, by the loading thread
  std::atomic<bool> draining_{false};
  std::thread loading_;
};

}  // namespace deepinfer
