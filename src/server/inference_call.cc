#include "server/inference_call.h"

#include <utility>

#include "base/logging.h"
#include "net/sse.h"
#include "server/error_response.h"

namespace deepinfer {

namespace {

Status StatusOf(const OutputDelta& delta) {
  if (delta.finish == FinishReason::kCancelled) {
    return {StatusCode::kCancelled, "the request was cancelled"};
  }
  return Status(static_cast<StatusCode>(delta.error_code), delta.error)
      .WithParam(delta.error_param);
}

// Says that the request runs and nothing else.
bool IsEmpty(const OutputDelta& delta) {
  return delta.token_ids.empty() && delta.text.empty() && delta.finish == FinishReason::kNone &&
         delta.prompt_logprobs.empty() && !delta.last;
}

HttpStreamStart EventStream(ErrorShape shape, const std::string& request_id) {
  HttpStreamStart start;
  AddRequestId(shape, request_id, &start.headers);
  start.headers.Add("Cache-Control", "no-cache");
  start.headers.Add("X-Accel-Buffering", "no");
  start.keep_alive = kSseKeepAlive;
  return start;
}

}  // namespace

InferenceCall::InferenceCall(const Context& context, DialectCall dialect,
                             std::shared_ptr<ResponseWriter> writer)
    : context_(context), dialect_(std::move(dialect)), writer_(std::move(writer)) {}

void InferenceCall::Start() {
  self_ = shared_from_this();
  const std::shared_ptr<InferenceCall> keep = self_;
  // Who learns of the response may cancel it before the engine has all of it.
  refusal_ = dialect_.response->OnStart([weak = weak_from_this()] {
    if (const std::shared_ptr<InferenceCall> call = weak.lock()) call->Cancel();
  });
  for (size_t i = 0; i < dialect_.requests.size(); ++i) {
    sinks_.emplace_back(this, static_cast<int>(i));
  }
  size_t submitted = 0;
  for (Request& request : dialect_.requests) {
    if (!refusal_.ok()) break;
    awaits_grammar_ |= request.sampling.grammar.has_value();
    Result<RequestId> id = context_.engine->Submit(std::move(request), &sinks_[submitted]);
    if (!id.ok()) {
      refusal_ = id.status();
      break;
    }
    ++submitted;
    std::lock_guard lock(mutex_);
    ids_.push_back(*id);
    ++open_;
  }
  if (submitted > 0) {
    writer_->OnClose([weak = weak_from_this()](CloseReason) {
      if (const std::shared_ptr<InferenceCall> call = weak.lock()) call->OnClientLeft();
    });
  }
  std::unique_lock lock(mutex_);
  if (!refusal_.ok()) {
    phase_ = Phase::kEnded;
    std::string text;
    dialect_.response->Fail(refusal_, &text);  // the answer is an error, whatever it says
    HttpResponse response = ErrorResponse(refusal_, dialect_.errors, writer_->request_id());
    context_.counters->AddResponse(response.status);
    writer_->Send(std::move(response));
  } else {
    phase_ = Phase::kRunning;
    if (!awaits_grammar_) OpenStream();
  }
  // What the engine said meanwhile; also counts down prompts that are over already.
  std::vector<std::pair<int, OutputDelta>> early = std::move(early_);
  for (auto& [prompt, delta] : early) Apply(prompt, std::move(delta));
  const bool nothing_left = open_ == 0;
  const bool cancel = cancelled_ || !refusal_.ok();
  lock.unlock();
  if (cancel) CancelAll();
  if (nothing_left) self_.reset();
}

void InferenceCall::OnDelta(int prompt, OutputDelta delta) {
  std::shared_ptr<InferenceCall> keep;
  std::unique_lock lock(mutex_);
  if (phase_ == Phase::kSubmitting) {
    early_.emplace_back(prompt, std::move(delta));
    return;
  }
  Apply(prompt, std::move(delta));
  if (open_ > 0) return;
  keep = std::move(self_);
  lock.unlock();
}

// Under the lock.
void InferenceCall::OpenStream() {
  if (dialect_.mode != DialectCall::Mode::kStream) return;
  writer_->StartStream(EventStream(dialect_.errors, writer_->request_id()));
}

// Under the lock.
void InferenceCall::Apply(int prompt, OutputDelta delta) {
  const bool last = delta.last;
  const bool broken =
      delta.finish == FinishReason::kError || delta.finish == FinishReason::kCancelled;
  if (last) --open_;
  if (phase_ == Phase::kEnded) return;
  if (broken) {
    Fail(StatusOf(delta));
    return;
  }
  if (std::exchange(awaits_grammar_, false)) OpenStream();
  if (IsEmpty(delta)) return;
  std::string frames;
  dialect_.response->OnDelta(prompt, std::move(delta), &frames);
  // A refused write means that the client is gone; OnClientLeft follows and cancels.
  if (!frames.empty()) writer_->Write(frames);
  if (open_ == 0) Complete();
}

// Under the lock. The other prompts of this request go as well.
void InferenceCall::Fail(const Status& status) {
  phase_ = Phase::kEnded;
  if (status.code() == StatusCode::kInternal) {
    LogError("request {} failed: {}", writer_->request_id(), status.message());
  }
  std::string text;
  dialect_.response->Fail(status, &text);
  HttpResponse response = ErrorResponse(status, dialect_.errors, writer_->request_id());
  if (dialect_.mode == DialectCall::Mode::kStream && !awaits_grammar_) {
    context_.counters->AddResponse(client_left_ ? 499 : response.status);
    writer_->Write(text);
    writer_->Finish();
  } else {
    if (!awaits_grammar_ && !text.empty())
      response = {200, "application/json", {}, std::move(text)};
    context_.counters->AddResponse(client_left_ ? 499 : response.status);
    writer_->Send(std::move(response));
  }
  // The engine must not be called from a sink.
  if (open_ > 0) {
    context_.prep->TrySubmit([call = shared_from_this()] { call->CancelAll(); });
  }
}

// Under the lock.
void InferenceCall::Complete() {
  phase_ = Phase::kEnded;
  context_.counters->AddResponse(client_left_ ? 499 : 200);
  if (dialect_.mode == DialectCall::Mode::kStream) {
    std::string frames;
    dialect_.response->Finish(&frames);
    writer_->Write(frames);
    writer_->Finish();
    return;
  }
  // A long body is written elsewhere, so that no other request waits for it.
  const auto send = [call = shared_from_this()] {
    HttpResponse response;
    AddRequestId(call->dialect_.errors, call->writer_->request_id(), &response.headers);
    call->dialect_.response->Finish(&response.body);
    call->writer_->Send(std::move(response));
  };
  Task task(send);
  if (context_.prep->TrySubmit(std::move(task)) != PushResult::kOk) send();
}

void InferenceCall::OnClientLeft() {
  {
    std::lock_guard lock(mutex_);
    client_left_ = true;
  }
  CancelAll();
}

void InferenceCall::Cancel() {
  {
    std::lock_guard lock(mutex_);
    cancelled_ = true;
  }
  CancelAll();
}

void InferenceCall::CancelAll() {
  std::vector<RequestId> ids;
  {
    std::lock_guard lock(mutex_);
    ids = ids_;
  }
  for (const RequestId id : ids) context_.engine->Cancel(id);
}

}  // namespace deepinfer
