#include "net/http_connection.h"

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>

#include "base/format.h"
#include "net/http_target.h"

namespace deepinfer {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

constexpr int64_t kLingerMs = 2'000;
constexpr size_t kLingerBytesMax = 1 << 20;
constexpr size_t kReadBytes = 16 << 10;
constexpr size_t kIdleBufferBytes = 32 << 10;
constexpr size_t kRequestIdBytesMax = 128;

// A request body that grows with the bytes that arrive, whatever length the client announced, and
// that is counted against the limit of the whole server.
struct GrowingBody {
  struct value_type {
    std::string text;
    HttpShared* shared = nullptr;
  };
  class reader {
   public:
    template <bool kRequest, class Fields>
    reader(http::header<kRequest, Fields>&, value_type& value) : value_(value) {}
    void init(const boost::optional<std::uint64_t>&, error_code& error) { error = {}; }
    template <class Buffers>
    size_t put(const Buffers& buffers, error_code& error) {
      size_t bytes = 0;
      for (const auto buffer : beast::buffers_range_ref(buffers)) {
        value_.text.append(static_cast<const char*>(buffer.data()), buffer.size());
        bytes += buffer.size();
      }
      const int64_t held = value_.shared->counters.body_bytes += static_cast<int64_t>(bytes);
      error = {};
      if (held > value_.shared->config.body_bytes_in_flight_max) {
        error = make_error_code(boost::system::errc::not_enough_memory);
      }
      return bytes;
    }
    void finish(error_code& error) { error = {}; }

   private:
    value_type& value_;
  };
};

// Visible ASCII only: the id goes into a header of the answer and into logs.
bool UsableRequestId(const std::string* id) {
  if (id == nullptr || id->empty() || id->size() > kRequestIdBytesMax) return false;
  return std::all_of(id->begin(), id->end(), [](char c) { return c > 0x20 && c < 0x7F; });
}

bool AnswerHasNoBody(int status) { return status == 204 || status == 304; }

}  // namespace

struct HttpConnection::Parser {
  explicit Parser(HttpShared* shared) {
    request.header_limit(
        static_cast<std::uint32_t>(std::min<int64_t>(shared->config.header_bytes_max, UINT32_MAX)));
    request.body_limit(static_cast<std::uint64_t>(shared->config.body_bytes_max));
    request.get().body().shared = shared;
  }
  http::request_parser<GrowingBody> request;
};

struct HttpConnection::Buffer {
  beast::flat_buffer bytes;
};

HttpConnection::HttpConnection(IoThread* thread, asio::ip::tcp::socket socket, std::string peer)
    : thread_(thread),
      shared_(thread->shared()),
      socket_(std::move(socket)),
      peer_(std::move(peer)),
      buffer_(std::make_unique<Buffer>()) {}

HttpConnection::~HttpConnection() = default;

void HttpConnection::Start() {
  error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket_.non_blocking(true, ignored);
  BeginRequest();
  Read();
}

void HttpConnection::BeginRequest() {
  state_ = State::kHeader;
  parser_ = std::make_unique<Parser>(shared_);
  request_ = HttpRequest();
  header_begun_ = false;
  keep_alive_ = true;
  const HttpServerConfig& config = shared_->config;
  deadline_ms_ =
      IoThread::NowMs() + (first_request_ ? config.header_timeout_ms : config.idle_timeout_ms);
  first_request_ = false;
}

// One read is always outstanding, also while an answer is made: it sees the client leave.
void HttpConnection::Read() {
  if (reading_ || read_ended_ || state_ == State::kClosed) return;
  if (state_ == State::kAnswer &&
      buffer_->bytes.size() >= static_cast<size_t>(shared_->config.pipelined_bytes_max)) {
    return;
  }
  reading_ = true;
  // Waits without a buffer: idle connections hold none.
  socket_.async_wait(asio::ip::tcp::socket::wait_read,
                     [self = shared_from_this()](const error_code& error) {
                       self->reading_ = false;
                       if (self->state_ == State::kClosed) return;
                       if (error) {
                         self->Cut(CloseReason::kPeerLeft);
                       } else {
                         self->OnReadable();
                       }
                     });
}

void HttpConnection::OnReadable() {
  error_code error;
  const size_t bytes = socket_.read_some(buffer_->bytes.prepare(kReadBytes), error);
  if (error == asio::error::would_block || error == asio::error::try_again) {
    Read();
  } else if (error && error != asio::error::eof) {
    Cut(CloseReason::kPeerLeft);
  } else {
    OnRead(bytes, error ? ReadEnd::kEnded : ReadEnd::kOpen);
  }
}

void HttpConnection::OnRead(size_t bytes, ReadEnd end) {
  buffer_->bytes.commit(bytes);
  if (state_ == State::kLinger) {
    linger_bytes_ += bytes;
    buffer_->bytes.consume(buffer_->bytes.size());
    if (end == ReadEnd::kEnded || linger_bytes_ > kLingerBytesMax) {
      Close();
      return;
    }
    Read();
    return;
  }
  if (state_ != State::kAnswer) Parse();
  if (state_ == State::kClosed) return;
  if (end == ReadEnd::kEnded) {
    read_ended_ = true;
    if (state_ == State::kAnswer) {
      // Half-closed: an answer that is ready still goes out, but nobody waits for a long one.
      keep_alive_ = false;
      if (writer_) {
        ++shared_->counters.peers_left;
        writer_->Close(CloseReason::kPeerLeft);
      }
    } else if (state_ == State::kBody) {
      Refuse(
          shared_->hooks.error(400, "the connection ended before the request body did", request_));
    } else if (state_ != State::kClosed) {
      Close();
    }
    return;
  }
  Read();
}

void HttpConnection::Parse() {
  while ((state_ == State::kHeader || state_ == State::kBody) && buffer_->bytes.size() > 0) {
    if (!header_begun_) {
      header_begun_ = true;
      deadline_ms_ = IoThread::NowMs() + shared_->config.header_timeout_ms;
    }
    error_code error;
    buffer_->bytes.consume(parser_->request.put(buffer_->bytes.data(), error));
    if (error == http::error::need_more) return;
    if (error) {
      OnParseError(error.message(), error == http::error::header_limit                ? 431
                                    : error == http::error::body_limit                ? 413
                                    : error == http::error::bad_version               ? 505
                                    : error == boost::system::errc::not_enough_memory ? 503
                                                                                      : 400);
      return;
    }
    if (state_ == State::kHeader && parser_->request.is_header_done()) OnHeader();
    if (state_ == State::kBody && parser_->request.is_done()) Dispatch();
  }
}

void HttpConnection::OnParseError(const std::string& detail, int status) {
  const HttpServerConfig& config = shared_->config;
  std::string message = Format("malformed HTTP request: {}", detail);
  if (status == 431) {
    message = Format("the request header is larger than {} bytes", config.header_bytes_max);
  } else if (status == 413) {
    message = Format("the request body is larger than {} bytes", config.body_bytes_max);
  } else if (status == 505) {
    message = "only HTTP/1.0 and HTTP/1.1 are understood";
  } else if (status == 503) {
    message = Format("request bodies in flight hold more than {} bytes; retry later",
                     config.body_bytes_in_flight_max);
  }
  if (request_.path.empty()) {  // as much as was read of it
    Result<HttpTarget> target = ParseHttpTarget(std::string(parser_->request.get().target()));
    if (target.ok()) request_.path = std::move(target->path);
  }
  Refuse(shared_->hooks.error(status, message, request_));
}

// Copies the header out of the parser; a status other than 0 refuses the request.
int HttpConnection::ReadHead(std::string* message) {
  const auto& head = parser_->request.get();
  request_.method = std::string(head.method_string());
  request_.target = std::string(head.target());
  request_.peer = peer_;
  for (const auto& field : head) {
    request_.headers.Add(std::string(field.name_string()), std::string(field.value()));
  }
  http_1_0_ = head.version() < 11;
  head_only_ = request_.method == "HEAD";
  keep_alive_ = !http_1_0_ && parser_->request.keep_alive();
  const std::string* id = request_.headers.Find("x-request-id");
  request_.request_id = UsableRequestId(id)
                            ? *id
                            : Format("req-{:016x}{:08x}", shared_->id_seed,
                                     static_cast<uint32_t>(shared_->counters.next_request++));
  Result<HttpTarget> target = ParseHttpTarget(request_.target);
  if (!target.ok()) {
    *message = target.status().message();
    return 400;
  }
  request_.path = std::move(target->path);
  request_.query = std::move(target->query);
  const int hosts = request_.headers.Count("host");
  if (hosts > 1 || (hosts == 0 && !http_1_0_)) {
    *message = Format("a request needs exactly one Host field, found {}", hosts);
    return 400;
  }
  const int encodings = request_.headers.Count("transfer-encoding");
  if (encodings > 0 && (http_1_0_ || request_.headers.Count("content-length") > 0)) {
    *message = "Transfer-Encoding together with Content-Length or HTTP/1.0 is ambiguous";
    return 400;
  }
  if (encodings > 1 ||
      (encodings == 1 &&
       !EqualsIgnoreCase(*request_.headers.Find("transfer-encoding"), "chunked"))) {
    *message = "the only Transfer-Encoding understood is chunked";
    return 501;
  }
  const std::string* expect = request_.headers.Find("expect");
  if (expect != nullptr && !EqualsIgnoreCase(*expect, "100-continue")) {
    *message = "the only expectation understood is 100-continue";
    return 417;
  }
  return 0;
}

void HttpConnection::OnHeader() {
  state_ = State::kBody;
  deadline_ms_ = IoThread::NowMs() + shared_->config.body_timeout_ms;
  ++shared_->counters.requests_total;
  std::string message;
  if (const int status = ReadHead(&message); status != 0) {
    Refuse(shared_->hooks.error(status, message, request_));
    return;
  }
  HttpAdmission admission = shared_->hooks.admit(request_);
  if (admission.refusal) {
    Refuse(std::move(*admission.refusal));
    return;
  }
  if (admission.limit == HttpAdmission::Limit::kCounted) {
    counted_ = true;
    const int64_t running = ++shared_->counters.requests_in_flight;
    if (running > shared_->config.requests_in_flight_max) {
      HttpResponse busy =
          shared_->hooks.error(503,
                               Format("{} requests are in flight, the limit is {}; retry later",
                                      running - 1, shared_->config.requests_in_flight_max),
                               request_);
      busy.headers.Add("Retry-After", "1");
      Refuse(std::move(busy));
      return;
    }
  }
  if (!http_1_0_ && !parser_->request.is_done() && buffer_->bytes.size() == 0 &&
      request_.headers.Find("expect") != nullptr) {
    out_ = "HTTP/1.1 100 Continue\r\n\r\n";
    StartWrite();
  }
}

void HttpConnection::Dispatch() {
  state_ = State::kAnswer;
  request_.body = std::move(parser_->request.get().body().text);
  body_bytes_held_ = static_cast<int64_t>(request_.body.size());
  parser_.reset();
  stream_ = false;
  chunked_ = false;
  answer_finished_ = false;
  std::shared_ptr<IoThread> thread = thread_->shared_from_this();
  auto writer = std::make_shared<ResponseWriter>(
      request_.request_id, static_cast<size_t>(shared_->config.stream_buffer_bytes_max),
      [thread, weak = weak_from_this()] { thread->Notify(weak); });
  writer_ = writer;
  // Shared with the route: when it lets go without an answer, the client must not wait for ever.
  std::shared_ptr<ResponseWriter> handle(
      writer.get(),
      [writer, error = shared_->hooks.error, path = request_.path](ResponseWriter* forgotten) {
        if (!forgotten->answered()) {
          HttpRequest head;
          head.path = path;
          head.request_id = forgotten->request_id();
          forgotten->Send(error(500, "the request ended without an answer", head));
        }
        forgotten->Abort();  // a stream without its end
      });
  // The answer needs the origin and the id after the request has moved on.
  HttpRequest request = std::move(request_);
  request_ = HttpRequest();
  request_.request_id = request.request_id;
  if (const std::string* origin = request.headers.Find("origin")) {
    request_.headers.Add("origin", *origin);
  }
  shared_->hooks.handle(std::move(request), std::move(handle));
}

// Answers without reading what may follow; the connection ends unless the request is complete.
void HttpConnection::Refuse(HttpResponse response) {
  if (!parser_ || !parser_->request.is_done()) keep_alive_ = false;
  if (request_.request_id.empty()) {
    request_.request_id = Format("req-{:016x}{:08x}", shared_->id_seed,
                                 static_cast<uint32_t>(shared_->counters.next_request++));
  }
  state_ = State::kAnswer;
  if (parser_) {
    body_bytes_held_ = static_cast<int64_t>(parser_->request.get().body().text.size());
  }
  parser_.reset();
  stream_ = false;
  answer_finished_ = true;
  refusal_ = std::move(response);
  if (!writing_) FlushRefusal();
}

void HttpConnection::FlushRefusal() {
  HttpResponse response = std::move(*refusal_);
  refusal_.reset();
  QueueWhole(std::move(response));
  StartWrite();
}

void HttpConnection::ReleaseRequest() {
  if (counted_) --shared_->counters.requests_in_flight;
  counted_ = false;
  if (parser_) body_bytes_held_ += static_cast<int64_t>(parser_->request.get().body().text.size());
  shared_->counters.body_bytes -= body_bytes_held_;
  body_bytes_held_ = 0;
  parser_.reset();
  writer_.reset();
}

void HttpConnection::OnTick(int64_t now_ms) {
  const HttpServerConfig& config = shared_->config;
  if (state_ == State::kClosed) return;
  if (writing_ && now_ms - last_write_ms_ > config.write_stall_timeout_ms) {
    Cut(CloseReason::kSlowReader);
    return;
  }
  if (state_ == State::kAnswer) {
    if (stream_ && !writing_ && !answer_finished_ && !stream_keep_alive_.empty() &&
        now_ms - last_write_ms_ >= config.stream_keep_alive_ms) {
      AppendPiece(stream_keep_alive_);
      StartWrite();
    }
    return;
  }
  if (now_ms < deadline_ms_) return;
  if (state_ == State::kLinger || !header_begun_) {
    Close();
  } else if (state_ == State::kHeader) {
    Refuse(shared_->hooks.error(
        408, Format("the request header took longer than {} ms", config.header_timeout_ms),
        request_));
  } else {
    Refuse(shared_->hooks.error(
        408, Format("the request body took longer than {} ms", config.body_timeout_ms), request_));
  }
}

void HttpConnection::OnDrain() {
  if (state_ == State::kHeader && !header_begun_) Close();
}

void HttpConnection::Cut(CloseReason reason) {
  if (state_ == State::kClosed) return;
  if (writer_ && !answer_finished_) {
    if (reason == CloseReason::kSlowReader) ++shared_->counters.slow_readers;
    if (reason == CloseReason::kPeerLeft && !read_ended_) ++shared_->counters.peers_left;
  }
  const std::shared_ptr<HttpConnection> self = shared_from_this();
  const std::shared_ptr<ResponseWriter> writer = writer_;
  Close();
  if (writer) writer->Close(reason);
}

void HttpConnection::Linger() {
  state_ = State::kLinger;
  deadline_ms_ = IoThread::NowMs() + kLingerMs;
  linger_bytes_ = 0;
  error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  if (read_ended_) {
    Close();
    return;
  }
  buffer_->bytes.consume(buffer_->bytes.size());
  Read();
}

void HttpConnection::Close() {
  if (state_ == State::kClosed) return;
  const std::shared_ptr<HttpConnection> self = shared_from_this();
  state_ = State::kClosed;
  ReleaseRequest();
  error_code ignored;
  socket_.close(ignored);
  thread_->Remove(this);
}

void HttpConnection::OnWriterReady() {
  if (state_ != State::kAnswer || !writer_) return;
  if (writer_->overflowed()) {
    Cut(CloseReason::kSlowReader);
    return;
  }
  if (!writing_) Flush();
}

void HttpConnection::BuildHead(int status, const std::string& content_type,
                               const HttpHeaders& headers, const std::string& framing) {
  out_ += Format("HTTP/1.1 {} {}\r\nServer: deepinfer\r\nDate: {}\r\n", status, HttpReason(status),
                 thread_->Date());
  if (!content_type.empty() && !AnswerHasNoBody(status)) {
    out_ += Format("Content-Type: {}\r\n", content_type);
  }
  out_ += framing;
  out_ += Format("x-request-id: {}\r\n", request_.request_id);
  for (const auto& [name, value] : headers.fields()) out_ += Format("{}: {}\r\n", name, value);
  if (const std::string* origin = request_.headers.Find("origin")) {
    for (const std::string& allowed : shared_->config.cors_origins) {
      if (allowed != "*" && allowed != *origin) continue;
      out_ += Format(
          "Access-Control-Allow-Origin: {}\r\nVary: Origin\r\n"
          "Access-Control-Expose-Headers: x-request-id, retry-after\r\n",
          allowed == "*" ? "*" : *origin);
      break;
    }
  }
  if (thread_->draining()) keep_alive_ = false;
  if (!keep_alive_) out_ += "Connection: close\r\n";
  out_ += "\r\n";
}

void HttpConnection::QueueWhole(HttpResponse response) {
  const bool bodyless = AnswerHasNoBody(response.status);
  BuildHead(response.status, response.content_type, response.headers,
            bodyless ? std::string() : Format("Content-Length: {}\r\n", response.body.size()));
  if (!bodyless && !head_only_) out_body_ = std::move(response.body);
}

void HttpConnection::AppendPiece(const std::string& bytes) {
  if (head_only_) return;
  if (!chunked_) {
    out_ += bytes;
    return;
  }
  out_ += Format("{:x}\r\n", bytes.size());
  out_ += bytes;
  out_ += "\r\n";
}

void HttpConnection::Flush() {
  ResponseWriter::Taken taken = writer_->Take();
  if (taken.whole) QueueWhole(std::move(*taken.whole));
  if (taken.start) {
    stream_ = true;
    chunked_ = !http_1_0_;
    stream_keep_alive_ = std::move(taken.start->keep_alive);
    BuildHead(taken.start->status, taken.start->content_type, taken.start->headers,
              chunked_ ? "Transfer-Encoding: chunked\r\n" : "");
  }
  if (!taken.bytes.empty()) {
    AppendPiece(taken.bytes);
    out_payload_ += taken.bytes.size();
  }
  if (taken.finished) {
    answer_finished_ = true;
    if (taken.aborted) keep_alive_ = false;
    if (stream_ && chunked_ && !taken.aborted && !head_only_) out_ += "0\r\n\r\n";
  }
  if (!out_.empty()) {
    StartWrite();
  } else if (answer_finished_) {
    AnswerDone();
  }
}

void HttpConnection::StartWrite() {
  writing_ = true;
  last_write_ms_ = IoThread::NowMs();
  const size_t head_done = std::min(out_done_, out_.size());
  const size_t body_done = out_done_ - head_done;
  const std::array<asio::const_buffer, 2> buffers = {
      asio::buffer(out_.data() + head_done, out_.size() - head_done),
      asio::buffer(out_body_.data() + body_done, out_body_.size() - body_done)};
  socket_.async_write_some(buffers,
                           [self = shared_from_this()](const error_code& error, size_t bytes) {
                             self->writing_ = false;
                             if (self->state_ == State::kClosed) return;
                             if (error) {
                               self->Cut(CloseReason::kPeerLeft);
                               return;
                             }
                             self->OnWritten(bytes);
                           });
}

void HttpConnection::OnWritten(size_t bytes) {
  out_done_ += bytes;
  if (out_done_ < out_.size() + out_body_.size()) {
    StartWrite();
    return;
  }
  out_done_ = 0;
  out_.clear();
  if (out_.capacity() > kIdleBufferBytes) out_ = std::string();
  out_body_ = std::string();
  if (writer_) writer_->Written(out_payload_);
  out_payload_ = 0;
  if (refusal_) {
    FlushRefusal();
  } else if (state_ == State::kAnswer && answer_finished_) {
    AnswerDone();
  } else if (state_ == State::kAnswer && writer_) {
    OnWriterReady();
  }
}

void HttpConnection::AnswerDone() {
  ReleaseRequest();
  if (!keep_alive_ || read_ended_ || thread_->draining()) {
    Linger();
    return;
  }
  if (buffer_->bytes.size() == 0) buffer_->bytes.shrink_to_fit();
  BeginRequest();
  Parse();
  Read();
}

}  // namespace deepinfer
