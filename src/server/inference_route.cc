#include "server/inference_route.h"

#include <utility>

#include "api/dialect.h"
#include "base/format.h"
#include "base/json.h"
#include "server/error_response.h"

namespace deepinfer {
namespace {

constexpr size_t kBackgroundBytes = size_t{1} << 20;

}  // namespace

void InferenceRoute::Handle(Parser parser, const ServedModel& served, HttpRequest request,
                            std::shared_ptr<ResponseWriter> writer) const {
  const int64_t arrival_us = clock_.NowUs();
  const ErrorShape shape = ErrorShapeOf(request.path);
  // Held by the task; given back when the queue is full.
  auto task_writer = writer;
  Task task([this, parser, &served, arrival_us, request = std::move(request),
             writer = std::move(task_writer)]() mutable {
    Run(parser, served, request, std::move(writer), arrival_us);
  });
  if (options_.prep->TrySubmit(std::move(task)) == PushResult::kOk) return;
  options_.counters->AddOverload();
  HttpResponse busy = ErrorResponse(Unavailable("too many requests wait to be parsed; retry later"),
                                    shape, writer->request_id());
  options_.counters->AddResponse(busy.status);
  writer->Send(std::move(busy));
}

void InferenceRoute::Run(Parser parser, const ServedModel& served, const HttpRequest& request,
                         std::shared_ptr<ResponseWriter> writer, int64_t arrival_us) const {
  if (writer->closed()) {
    options_.counters->AddResponse(499);
    return;
  }
  Result<Json> body = Json::Parse(request.body);
  Result<DialectCall> parsed = body.status();
  if (body.ok()) parsed = parser(*body, served.dialect);
  if (!parsed.ok()) {
    options_.counters->AddInvalid();
    HttpResponse refusal =
        ErrorResponse(parsed.status(), ErrorShapeOf(request.path), writer->request_id());
    options_.counters->AddResponse(refusal.status);
    writer->Send(std::move(refusal));
    return;
  }
  if (options_.request_timeout_ms > 0) {
    for (Request& prompt : parsed->requests) {
      prompt.deadline_us = arrival_us + options_.request_timeout_ms * 1000;
    }
  }
  InferenceCall::Context context = {
      .engine = served.engine.get(), .prep = options_.prep, .counters = options_.counters};
  const std::string accepted = std::move(parsed->accepted);
  if (accepted.empty()) {
    std::make_shared<InferenceCall>(context, *std::move(parsed), std::move(writer))->Start();
    return;
  }
  // Nobody reads what the call writes: the response goes to the store.
  context.counters = &background_counters_;
  auto nobody = std::make_shared<ResponseWriter>(writer->request_id(), kBackgroundBytes, [] {});
  const ErrorShape shape = parsed->errors;
  const auto call = std::make_shared<InferenceCall>(context, *std::move(parsed), std::move(nobody));
  call->Start();
  HttpResponse answer = call->refusal().ok()
                            ? HttpResponse{200, "application/json", {}, accepted}
                            : ErrorResponse(call->refusal(), shape, writer->request_id());
  options_.counters->AddResponse(answer.status);
  writer->Send(std::move(answer));
}

}  // namespace deepinfer
