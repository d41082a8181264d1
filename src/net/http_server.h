// HTTP/1.1 server: a few event-driven I/O threads, no thread per connection. Hooks run on I/O
// threads and must hand long work over; the answer may come from any thread (ResponseWriter).
// Start, Drain and the destructor belong to one control thread; hooks must outlive the server.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "deepinfer/status.h"
#include "net/http_types.h"
#include "net/response_writer.h"

namespace deepinfer {

struct HttpServerConfig {
  std::string host = "127.0.0.1";  // address or name to listen on
  int port = 8000;                 // 0: any free port, see HttpServer::port()
  int io_threads = 1;
  int listen_backlog = 1024;
  int connections_max = 10'000;                // more: 503 and closed at once
  int requests_in_flight_max = 4'096;          // more: 503; not for HttpAdmission::Limit::kExempt
  int64_t header_bytes_max = 64 << 10;         // more: 431
  int64_t body_bytes_max = 64 << 20;           // more: 413
  int64_t body_bytes_in_flight_max = 1 << 30;  // all requests together; more: 503
  int64_t pipelined_bytes_max = 64 << 10;      // read ahead while an answer is being made
  int64_t header_timeout_ms = 15'000;          // first byte to end of header; else 408
  int64_t body_timeout_ms = 120'000;           // end of header to end of body; else 408
  int64_t idle_timeout_ms = 75'000;            // between requests; closed silently
  int64_t write_stall_timeout_ms = 60'000;     // a client that takes no byte for so long is cut
  int64_t stream_keep_alive_ms = 15'000;       // silence before a keep-alive comment
  int64_t stream_buffer_bytes_max = 4 << 20;   // unread bytes of one answer; more: cut
  std::vector<std::string> cors_origins;       // "*" or exact origins; empty: no CORS headers
};

// Decided when the header is complete, before any byte of the body is read.
struct HttpAdmission {
  enum class Limit { kCounted, kExempt };  // against requests_in_flight_max
  Limit limit = Limit::kCounted;
  std::optional<HttpResponse> refusal;  // answer this and close if a body would follow
};

struct HttpHooks {
  std::function<HttpAdmission(const HttpRequest& head)> admit;
  std::function<void(HttpRequest request, std::shared_ptr<ResponseWriter> writer)> handle;
  // An answer that the server makes itself (408, 413, 431, ...); also called where a route let go
  // of its writer. `head`: as much of the request as is known, perhaps nothing.
  std::function<HttpResponse(int status, const std::string& message, const HttpRequest& head)>
      error;
};

struct HttpServerStats {
  int64_t connections = 0;
  int64_t requests_in_flight = 0;
  int64_t requests_total = 0;
  int64_t connections_refused_total = 0;
  int64_t slow_readers_total = 0;
  int64_t peers_left_total = 0;  // before the answer was complete
};

class HttpServer {
 public:
  HttpServer(HttpServerConfig config, HttpHooks hooks);
  ~HttpServer();  // drains without patience
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Listens and starts the I/O threads. The error names the address and what to do.
  Status Start();
  int port() const;
  HttpServerStats stats() const;

  // Stops accepting, closes idle connections, lets running requests finish for at most
  // `patience_ms`, cuts the rest and stops the I/O threads. True when nothing had to be cut.
  bool Drain(int64_t patience_ms);

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
