// One client connection of the HTTP server: reads requests, writes answers in order, enforces the
// limits. Lives on one I/O thread; kept alive by IoThread's set and by its own pending operations.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <string>

#include "net/http_io.h"

namespace deepinfer {

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(IoThread* thread, boost::asio::ip::tcp::socket socket, std::string peer);
  ~HttpConnection();

  void Start();
  // The writer has news.
  void OnWriterReady();
  // Deadlines, several times a second.
  void OnTick(int64_t now_ms);
  // Closes at the next quiet point.
  void OnDrain();
  // Closes now.
  void Cut(CloseReason reason);

 private:
  enum class State { kHeader, kBody, kAnswer, kLinger, kClosed };
  enum class ReadEnd { kOpen, kEnded };
  struct Parser;
  struct Buffer;

  void BeginRequest();
  void Read();
  void OnReadable();
  void OnRead(size_t bytes, ReadEnd end);
  void Parse();
  void OnParseError(const std::string& detail, int status);
  int ReadHead(std::string* message);
  void OnHeader();
  void Dispatch();
  void Refuse(HttpResponse response);
  void FlushRefusal();
  void ReleaseRequest();

  void BuildHead(int status, const std::string& content_type, const HttpHeaders& headers,
                 const std::string& framing);
  void QueueWhole(HttpResponse response);
  void AppendPiece(const std::string& bytes);
  void Flush();
  void StartWrite();
  void OnWritten(size_t bytes);
  void AnswerDone();
  void Linger();
  void Close();

  IoThread* thread_;  // outlives this
  HttpShared* shared_;
  boost::asio::ip::tcp::socket socket_;
  const std::string peer_;

  State state_ = State::kHeader;
  std::unique_ptr<Buffer> buffer_;
  std::unique_ptr<Parser> parser_;  // while a request is read
  HttpRequest request_;
  std::optional<HttpResponse> refusal_;  // waits for the write in progress
  int64_t body_bytes_held_ = 0;          // counted in HttpCounters::body_bytes
  bool first_request_ = true;
  bool header_begun_ = false;
  bool keep_alive_ = true;
  bool http_1_0_ = false;
  bool head_only_ = false;
  bool counted_ = false;
  bool reading_ = false;
  bool read_ended_ = false;
  int64_t deadline_ms_ = 0;

  std::shared_ptr<ResponseWriter> writer_;
  bool stream_ = false;
  bool chunked_ = false;
  bool answer_finished_ = false;
  std::string stream_keep_alive_;
  int64_t last_write_ms_ = 0;

  std::string out_;         // being written
  std::string out_body_;    // written after out_, moved from a whole answer
  size_t out_done_ = 0;     // bytes of out_ + out_body_ already written
  size_t out_payload_ = 0;  // stream bytes inside out_, for the writer's account
  bool writing_ = false;
  size_t linger_bytes_ = 0;
};

}  // namespace deepinfer
