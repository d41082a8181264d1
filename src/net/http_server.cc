#include "net/http_server.h"

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <ctime>
#include <random>
#include <thread>

#include "base/check.h"
#include "base/format.h"
#include "net/http_connection.h"

namespace deepinfer {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr int64_t kTickMsMin = 10;
constexpr int64_t kTickMsMax = 250;
constexpr int64_t kAcceptPauseMs = 100;
constexpr int64_t kPollMs = 2;

// A quarter of the shortest deadline, so that none is late by more than that.
int64_t TickMs(const HttpServerConfig& config) {
  const int64_t shortest =
      std::min({config.header_timeout_ms, config.body_timeout_ms, config.idle_timeout_ms,
                config.write_stall_timeout_ms, config.stream_keep_alive_ms});
  return std::clamp(shortest / 4, kTickMsMin, kTickMsMax);
}

}  // namespace

// --- IoThread ---

void IoThread::Notify(std::weak_ptr<HttpConnection> connection) {
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return;
    notified_.push_back(std::move(connection));
    if (posted_) return;
    posted_ = true;
  }
  asio::post(io_, [this] { RunNotified(); });
}

void IoThread::RunNotified() {
  std::vector<std::weak_ptr<HttpConnection>> batch;
  {
    std::lock_guard lock(mutex_);
    batch.swap(notified_);
    posted_ = false;
  }
  for (const std::weak_ptr<HttpConnection>& weak : batch) {
    if (const std::shared_ptr<HttpConnection> connection = weak.lock()) {
      connection->OnWriterReady();
    }
  }
}

void IoThread::Adopt(tcp::socket socket, std::string peer) {
  auto connection = std::make_shared<HttpConnection>(this, std::move(socket), std::move(peer));
  connections_.insert(connection);
  connection->Start();
  if (draining_) connection->OnDrain();
  ArmTick();
}

void IoThread::Remove(HttpConnection* connection) {
  if (connections_.erase(connection->shared_from_this()) > 0) --shared_->counters.connections;
}

void IoThread::ArmTick() {
  if (tick_armed_ || connections_.empty()) return;
  tick_armed_ = true;
  tick_timer_.expires_after(std::chrono::milliseconds(TickMs(shared_->config)));
  tick_timer_.async_wait([this](const error_code& error) {
    tick_armed_ = false;
    if (error) return;
    const std::vector<std::shared_ptr<HttpConnection>> all(connections_.begin(),
                                                           connections_.end());
    const int64_t now_ms = NowMs();
    for (const auto& connection : all) connection->OnTick(now_ms);
    ArmTick();
  });
}

void IoThread::StartDrain() {
  draining_ = true;
  const std::vector<std::shared_ptr<HttpConnection>> all(connections_.begin(), connections_.end());
  for (const auto& connection : all) connection->OnDrain();
}

void IoThread::CutAll() {
  const std::vector<std::shared_ptr<HttpConnection>> all(connections_.begin(), connections_.end());
  for (const auto& connection : all) connection->Cut(CloseReason::kShutdown);
  tick_timer_.cancel();
}

void IoThread::Stop() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  notified_.clear();
}

const std::string& IoThread::Date() {
  const std::time_t now = std::time(nullptr);
  if (now == date_second_) return date_;
  date_second_ = now;
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[64];
  std::strftime(text, sizeof(text), "%a, %d %b %Y %H:%M:%S GMT", &parts);
  date_ = text;
  return date_;
}

// --- HttpServer ---

struct HttpServer::Impl {
  HttpShared shared;
  std::vector<std::shared_ptr<IoThread>> threads;  // shared with writers, for their wake-ups
  std::vector<asio::executor_work_guard<asio::io_context::executor_type>> guards;
  std::vector<std::thread> runners;
  std::unique_ptr<tcp::acceptor> acceptor;
  std::unique_ptr<asio::steady_timer> accept_pause;
  size_t next_thread = 0;
  int port = 0;
  bool running = false;

  Status Listen();
  void Accept();
  void Accepted(const error_code& error, tcp::socket socket, IoThread* thread);
};

Status HttpServer::Impl::Listen() {
  const HttpServerConfig& config = shared.config;
  if (config.port < 0 || config.port > 65535) {
    return Invalid(Format("port {} is not in 0..65535", config.port)).WithParam("port");
  }
  error_code error;
  tcp::resolver resolver(threads[0]->io());
  const auto found =
      resolver.resolve(config.host, std::to_string(config.port), tcp::resolver::passive, error);
  if (error) {
    return Invalid(Format("host \"{}\" is not known: {}", config.host, error.message()))
        .WithParam("host");
  }
  const tcp::endpoint endpoint = *found.begin();
  acceptor = std::make_unique<tcp::acceptor>(threads[0]->io());
  acceptor->open(endpoint.protocol(), error);
  if (!error) acceptor->set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor->bind(endpoint, error);
  if (!error) acceptor->listen(config.listen_backlog, error);
  if (error) {
    acceptor.reset();
    return Unavailable(Format("cannot listen on {}:{}: {}; choose another --port or --host",
                              config.host, config.port, error.message()));
  }
  port = acceptor->local_endpoint(error).port();
  return {};
}

void HttpServer::Impl::Accept() {
  IoThread* thread = threads[next_thread++ % threads.size()].get();
  acceptor->async_accept(thread->io(), [this, thread](const error_code& error, tcp::socket socket) {
    Accepted(error, std::move(socket), thread);
  });
}

void HttpServer::Impl::Accepted(const error_code& error, tcp::socket socket, IoThread* thread) {
  if (!acceptor->is_open()) return;
  if (error) {
    // Out of descriptors or similar: wait for some to come back instead of spinning.
    accept_pause->expires_after(std::chrono::milliseconds(kAcceptPauseMs));
    accept_pause->async_wait([this](const error_code& cancelled) {
      if (!cancelled && acceptor->is_open()) Accept();
    });
    return;
  }
  error_code ignored;
  if (++shared.counters.connections > shared.config.connections_max) {
    --shared.counters.connections;
    ++shared.counters.connections_refused;
    socket.non_blocking(true, ignored);
    HttpResponse busy = shared.hooks.error(
        503,
        Format("{} connections are open, the limit; retry later", shared.config.connections_max),
        HttpRequest());
    const std::string text = Format(
        "HTTP/1.1 503 {}\r\nContent-Type: {}\r\nRetry-After: 1\r\nConnection: close\r\n"
        "Content-Length: {}\r\n\r\n{}",
        HttpReason(503), busy.content_type, busy.body.size(), busy.body);
    socket.write_some(asio::buffer(text), ignored);
    socket.shutdown(tcp::socket::shutdown_both, ignored);
  } else {
    const tcp::endpoint remote = socket.remote_endpoint(ignored);
    std::string peer = Format("{}:{}", remote.address().to_string(), remote.port());
    asio::post(thread->io(), [thread, moved = std::move(socket), peer = std::move(peer)]() mutable {
      thread->Adopt(std::move(moved), std::move(peer));
    });
  }
  Accept();
}

HttpServer::HttpServer(HttpServerConfig config, HttpHooks hooks) : impl_(std::make_unique<Impl>()) {
  DI_CHECK(hooks.admit && hooks.handle && hooks.error, "every hook is needed");
  impl_->shared.config = std::move(config);
  impl_->shared.hooks = std::move(hooks);
  std::random_device device;
  impl_->shared.id_seed = (static_cast<uint64_t>(device()) << 32) | device();
}

HttpServer::~HttpServer() { Drain(0); }

Status HttpServer::Start() {
  DI_CHECK(!impl_->running, "Start is called once");
  const int count = std::max(1, impl_->shared.config.io_threads);
  for (int i = 0; i < count; ++i) {
    impl_->threads.push_back(std::make_shared<IoThread>(&impl_->shared));
  }
  if (Status status = impl_->Listen(); !status.ok()) {
    impl_->threads.clear();
    return status;
  }
  impl_->accept_pause = std::make_unique<asio::steady_timer>(impl_->threads[0]->io());
  impl_->Accept();
  for (const std::shared_ptr<IoThread>& thread : impl_->threads) {
    impl_->guards.push_back(asio::make_work_guard(thread->io()));
    impl_->runners.emplace_back([thread] { thread->io().run(); });
  }
  impl_->running = true;
  return {};
}

int HttpServer::port() const { return impl_->port; }

HttpServerStats HttpServer::stats() const {
  const HttpCounters& counters = impl_->shared.counters;
  return {.connections = counters.connections,
          .requests_in_flight = counters.requests_in_flight,
          .requests_total = counters.requests_total,
          .connections_refused_total = counters.connections_refused,
          .slow_readers_total = counters.slow_readers,
          .peers_left_total = counters.peers_left};
}

bool HttpServer::Drain(int64_t patience_ms) {
  if (!impl_->running) return true;
  impl_->running = false;
  asio::post(impl_->threads[0]->io(), [impl = impl_.get()] {
    error_code ignored;
    impl->acceptor->close(ignored);
    impl->accept_pause->cancel();
  });
  for (const auto& thread : impl_->threads) {
    asio::post(thread->io(), [thread] { thread->StartDrain(); });
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(patience_ms);
  const HttpCounters& counters = impl_->shared.counters;
  while (counters.connections > 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(kPollMs));
  }
  const bool clean = counters.connections == 0;
  for (const auto& thread : impl_->threads) {
    asio::post(thread->io(), [thread] {
      thread->CutAll();
      thread->Stop();
    });
  }
  impl_->guards.clear();
  for (std::thread& runner : impl_->runners) runner.join();
  impl_->runners.clear();
  impl_->acceptor.reset();
  impl_->accept_pause.reset();
  return clean;
}

}  // namespace deepinfer
