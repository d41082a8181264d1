#include "server/inference_route.h"

#include <utility>

#include "api/dialect.h"
#include "base/format.h"
#include "base/json.h"
#include "server/error_response.h"

namespace deepinfer {

void InferenceRoute::Handle(Dialect dialect, const ServedModel& served, HttpRequest request,
                            std::shared_ptr<ResponseWriter> writer) const {
  const int64_t arrival_us = clock_.NowUs();
  // Held by the task; given back when the queue is full.
  auto task_writer = writer;
  Task task([this, dialect, &served, arrival_us, request = std::move(request),
             writer = std::move(task_writer)]() mutable {
    Run(dialect, served, request, std::move(writer), arrival_us);
  });
  if (options_.prep->TrySubmit(std::move(task)) == PushResult::kOk) return;
  options_.counters->AddOverload();
  HttpResponse busy =
      ErrorResponse(Unavailable("too many requests wait to be parsed; retry later"));
  options_.counters->AddResponse(busy.status);
  writer->Send(std::move(busy));
}

void InferenceRoute::Run(Dialect dialect, const ServedModel& served, const HttpRequest& request,
                         std::shared_ptr<ResponseWriter> writer, int64_t arrival_us) const {
  if (writer->closed()) {
    options_.counters->AddResponse(499);
    return;
  }
  Result<Json> body = Json::Parse(request.body);
  Result<DialectCall> parsed = body.status();
  if (body.ok()) {
    parsed = dialect == Dialect::kChat ? ParseChatCompletion(*body, served.dialect)
                                       : ParseCompletion(*body, served.dialect);
  }
  if (!parsed.ok()) {
    options_.counters->AddInvalid();
    HttpResponse refusal = ErrorResponse(parsed.status());
    options_.counters->AddResponse(refusal.status);
    writer->Send(std::move(refusal));
    return;
  }
  if (options_.request_timeout_ms > 0) {
    for (Request& prompt : parsed->requests) {
      prompt.deadline_us = arrival_us + options_.request_timeout_ms * 1000;
    }
  }
  const InferenceCall::Context context = {
      .engine = served.engine.get(), .prep = options_.prep, .counters = options_.counters};
  std::make_shared<InferenceCall>(context, *std::move(parsed), std::move(writer))->Start();
}

}  // namespace deepinfer
