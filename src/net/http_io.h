// One I/O thread of the HTTP server and what its connections share. Private to net/http_*.
// IoThread is shared by the server, its connections and their writers (for the wake-up).
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <ctime>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "net/http_server.h"

namespace deepinfer {

class HttpConnection;

// Counters of the whole server, touched by every I/O thread.
struct HttpCounters {
  std::atomic<int64_t> connections{0};
  std::atomic<int64_t> requests_in_flight{0};
  std::atomic<int64_t> requests_total{0};
  std::atomic<int64_t> connections_refused{0};
  std::atomic<int64_t> slow_readers{0};
  std::atomic<int64_t> peers_left{0};
  std::atomic<int64_t> body_bytes{0};
  std::atomic<uint64_t> next_request{0};
};

// Outlives every connection: owned by HttpServer::Impl, which stops the threads first.
struct HttpShared {
  HttpServerConfig config;
  HttpHooks hooks;
  HttpCounters counters;
  uint64_t id_seed = 0;  // makes request ids differ between processes
};

class IoThread : public std::enable_shared_from_this<IoThread> {
 public:
  explicit IoThread(HttpShared* shared) : shared_(shared), tick_timer_(io_) {}

  boost::asio::io_context& io() { return io_; }
  HttpShared* shared() { return shared_; }

  // Any thread: `connection` has something to send. One post serves many notifications.
  void Notify(std::weak_ptr<HttpConnection> connection);

  // On this I/O thread only.
  void Adopt(boost::asio::ip::tcp::socket socket, std::string peer);
  void Remove(HttpConnection* connection);
  void StartDrain();
  void CutAll();
  bool draining() const { return draining_; }
  // No notification is accepted after this.
  void Stop();

  // The Date field of an answer sent now. On this I/O thread only.
  const std::string& Date();

  static int64_t NowMs() {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

 private:
  void ArmTick();
  void RunNotified();

  HttpShared* shared_;
  boost::asio::io_context io_{1};
  boost::asio::steady_timer tick_timer_;
  bool tick_armed_ = false;
  bool draining_ = false;
  std::time_t date_second_ = 0;
  std::string date_;
  std::unordered_set<std::shared_ptr<HttpConnection>> connections_;

  std::mutex mutex_;
  std::vector<std::weak_ptr<HttpConnection>> notified_;
  bool posted_ = false;
  bool stopped_ = false;
};

}  // namespace deepinfer
