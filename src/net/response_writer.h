// The answer to one HTTP request: either one whole response, or a stream of pieces. Usable from any
// thread, never blocks: bytes go to a bounded buffer that the connection's I/O thread empties, many
// pieces in one write. Shared by the route that answers and the connection; dropping the last
// reference of the route without an answer sends 500.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "net/http_types.h"

namespace deepinfer {

enum class CloseReason {
  kPeerLeft,    // the client closed or reset the connection
  kSlowReader,  // more unread bytes than stream_buffer_bytes_max, or no progress for too long
  kShutdown,    // the server stopped
};

// What a stream starts with; the body follows chunked (HTTP/1.1) or until the end (HTTP/1.0).
struct HttpStreamStart {
  int status = 200;
  std::string content_type = "text/event-stream; charset=utf-8";
  HttpHeaders headers;
  std::string keep_alive;  // bytes sent when the stream was silent for stream_keep_alive_ms
};

class ResponseWriter {
 public:
  ResponseWriter(std::string request_id, size_t buffer_bytes_max, std::function<void()> wake);
  ~ResponseWriter();
  ResponseWriter(const ResponseWriter&) = delete;
  ResponseWriter& operator=(const ResponseWriter&) = delete;

  const std::string& request_id() const { return request_id_; }

  // The whole answer. Ignored when an answer was sent or started before.
  void Send(HttpResponse response);

  void StartStream(HttpStreamStart start);
  // Appends to a started stream. False when the client is gone or reads too slowly.
  bool Write(std::string_view bytes);
  // Ends a started stream.
  void Finish();
  // Ends a started stream as broken: the connection is cut so that the client sees it.
  void Abort();

  // Bytes accepted but not yet taken by the socket.
  size_t buffered_bytes() const;
  bool closed() const;
  // An answer was sent or started.
  bool answered() const;
  // `callback` runs once, on an I/O thread, when the client is gone before the answer is complete;
  // at once on this thread when that has happened already. Never runs after Finish or Send.
  void OnClose(std::function<void(CloseReason)> callback);

  // --- for the connection, on its I/O thread ---
  struct Taken {
    std::optional<HttpResponse> whole;
    std::optional<HttpStreamStart> start;
    std::string bytes;
    bool finished = false;
    bool aborted = false;  // cut the connection
  };
  Taken Take();
  // `bytes` of what Take returned have left for the socket.
  void Written(size_t bytes);
  void Close(CloseReason reason);
  // The limit was passed: the connection must be cut.
  bool overflowed() const;

 private:
  enum class State { kOpen, kStreaming, kFinished };
  void WakeLocked(std::unique_lock<std::mutex>* lock);

  const std::string request_id_;
  const size_t buffer_bytes_max_;
  const std::function<void()> wake_;
  mutable std::mutex mutex_;
  State state_ = State::kOpen;
  Taken pending_;
  size_t taken_bytes_ = 0;
  bool wake_posted_ = false;
  bool overflowed_ = false;
  std::optional<CloseReason> closed_;
  std::function<void(CloseReason)> on_close_;
};

}  // namespace deepinfer
