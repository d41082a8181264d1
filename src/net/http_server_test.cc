#include "net/http_server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "base/format.h"
#include "net/test_client.h"

namespace deepinfer {
namespace {

// Answers by path: /echo gives the body back, /hold keeps the writer for the test, /drop forgets
// it.
class HttpServerTest : public testing::Test {
 protected:
  void StartServer(HttpServerConfig config = {}) {
    config.port = 0;
    HttpHooks hooks;
    hooks.admit = [this](const HttpRequest& head) { return Admit(head); };
    hooks.handle = [this](HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
      Handle(std::move(request), std::move(writer));
    };
    hooks.error = [](int status, const std::string& message, const deepinfer::HttpRequest&) {
      return HttpResponse{status, "text/plain", {}, message};
    };
    server_ = std::make_unique<HttpServer>(config, hooks);
    const Status status = server_->Start();
    ASSERT_TRUE(status.ok()) << status.message();
  }

  HttpAdmission Admit(const HttpRequest& head) {
    HttpAdmission admission;
    if (head.path == "/health") admission.limit = HttpAdmission::Limit::kExempt;
    if (head.path == "/secret") {
      admission.refusal = HttpResponse{401, "text/plain", {}, "no key"};
    }
    return admission;
  }

  void Handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
    ++handled_;
    if (request.path == "/hold") {
      writer->OnClose([this](CloseReason reason) {
        std::lock_guard lock(mutex_);
        closed_.push_back(reason);
        changed_.notify_all();
      });
      std::lock_guard lock(mutex_);
      held_.push_back(std::move(writer));
      changed_.notify_all();
    } else if (request.path == "/drop") {
      writer.reset();
    } else {
      writer->Send({200, "text/plain", {}, Format("{} {}", request.method, request.body)});
    }
  }

  std::shared_ptr<ResponseWriter> WaitHeld(size_t index = 0) {
    std::unique_lock lock(mutex_);
    const bool there =
        changed_.wait_for(lock, std::chrono::seconds(60), [&] { return held_.size() > index; });
    EXPECT_TRUE(there);
    return there ? held_[index] : nullptr;
  }
  void DropHeld() {
    std::vector<std::shared_ptr<ResponseWriter>> dropped;
    std::lock_guard lock(mutex_);
    dropped.swap(held_);
  }
  std::optional<CloseReason> WaitClosed() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(60), [&] { return !closed_.empty(); });
    return closed_.empty() ? std::nullopt : std::optional(closed_.front());
  }
  template <typename Condition>
  static bool Eventually(Condition condition) {
    for (int i = 0; i < 500; ++i) {
      if (condition()) return true;
      std::mutex mutex;
      std::unique_lock lock(mutex);
      std::condition_variable().wait_for(lock, std::chrono::milliseconds(10));
    }
    return false;
  }

  std::string Exchange(const std::string& bytes) {
    RawClient client(server_->port());
    client.Send(bytes);
    return client.ReadAll();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<ResponseWriter>> held_;
  std::vector<CloseReason> closed_;
  std::atomic<int> handled_{0};
  std::unique_ptr<HttpServer> server_;
};

constexpr char kGetEcho[] = "GET /echo HTTP/1.1\r\nHost: a\r\n\r\n";

TEST_F(HttpServerTest, AnswersAndKeepsTheConnection) {
  StartServer();
  RawClient client(server_->port());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(client.Send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi"));
    const std::string answer = client.ReadResponse();
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer;
    EXPECT_TRUE(answer.ends_with("\r\n\r\nPOST hi")) << answer;
    EXPECT_NE(answer.find("x-request-id: req-"), std::string::npos);
  }
  EXPECT_EQ(server_->stats().connections, 1);
  EXPECT_EQ(server_->stats().requests_total, 3);
}

TEST_F(HttpServerTest, EchoesAWellFormedRequestIdOnly) {
  StartServer();
  EXPECT_NE(Exchange("GET /echo HTTP/1.1\r\nHost: a\r\nX-Request-Id: abc-1\r\n"
                     "Connection: close\r\n\r\n")
                .find("x-request-id: abc-1\r\n"),
            std::string::npos);
  const std::string odd = Exchange(
      "GET /echo HTTP/1.1\r\nHost: a\r\nX-Request-Id: a b\r\n"
      "Connection: close\r\n\r\n");
  EXPECT_EQ(odd.find("a b"), std::string::npos);
  EXPECT_NE(odd.find("x-request-id: req-"), std::string::npos);
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  StartServer();
  std::string all;
  for (int i = 0; i < 50; ++i) {
    all += Format("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n{:03}", i);
  }
  RawClient client(server_->port());
  ASSERT_TRUE(client.Send(all));
  for (int i = 0; i < 50; ++i) {
    EXPECT_TRUE(client.ReadResponse().ends_with(Format("POST {:03}", i))) << i;
  }
}

TEST_F(HttpServerTest, PipelinedGarbageAfterARequestIsRefused) {
  StartServer();
  const std::string answer = Exchange(std::string(kGetEcho) + "\x01\x02garbage\r\n\r\n");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200")) << answer;
  EXPECT_NE(answer.find("HTTP/1.1 400 Bad Request"), std::string::npos) << answer;
  EXPECT_EQ(handled_, 1);
}

TEST_F(HttpServerTest, ReadsChunkedBodies) {
  StartServer();
  const std::string answer = Exchange(
      "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
      "Connection: close\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n");
  EXPECT_TRUE(answer.ends_with("POST abcde")) << answer;
}

TEST_F(HttpServerTest, HeadHasNoBody) {
  StartServer();
  const std::string answer =
      Exchange("HEAD /echo HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  EXPECT_NE(answer.find("Content-Length: 5\r\n"), std::string::npos) << answer;
  EXPECT_TRUE(answer.ends_with("\r\n\r\n")) << answer;
}

TEST_F(HttpServerTest, Http10ClosesAndStreamsWithoutChunks) {
  StartServer();
  EXPECT_NE(Exchange("GET /echo HTTP/1.0\r\n\r\n").find("Connection: close\r\n"),
            std::string::npos);
  RawClient client(server_->port());
  client.Send("GET /hold HTTP/1.0\r\n\r\n");
  const auto writer = WaitHeld();
  writer->StartStream({});
  writer->Write("data: x\n\n");
  writer->Finish();
  const std::string answer = client.ReadAll();
  EXPECT_TRUE(answer.ends_with("\r\n\r\ndata: x\n\n")) << answer;
  EXPECT_EQ(answer.find("chunked"), std::string::npos);
}

TEST_F(HttpServerTest, ExpectContinueIsAnsweredBeforeTheBody) {
  StartServer();
  RawClient client(server_->port());
  client.Send(
      "POST /echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"
      "Content-Length: 2\r\n\r\n");
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send("ok");
  EXPECT_TRUE(client.ReadResponse().ends_with("POST ok"));
}

TEST_F(HttpServerTest, RefusalComesInsteadOfContinue) {
  StartServer();
  RawClient client(server_->port());
  client.Send(
      "POST /secret HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"
      "Content-Length: 1000000\r\n\r\n");
  EXPECT_TRUE(client.ReadAll().starts_with("HTTP/1.1 401"));
  EXPECT_EQ(handled_, 0);
}

struct Hostile {
  const char* name;
  std::string bytes;
  int status;
};

// For header_bytes_max 4096 and body_bytes_max 1000.
std::vector<Hostile> HostileCases() {
  const std::string host = "Host: a\r\n";
  return {
      {"not HTTP", "hello\r\n\r\n", 400},
      {"TLS hello", std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 15), 400},
      {"no host", "GET /echo HTTP/1.1\r\n\r\n", 400},
      {"two hosts", "GET /echo HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
      {"HTTP/2 text", "GET /echo HTTP/2.0\r\n" + host + "\r\n", 505},
      {"long header", "GET /echo HTTP/1.1\r\n" + host + "X: " + std::string(9000, 'x'), 431},
      {"many headers",
       "GET /echo HTTP/1.1\r\n" + host +
           [] {
             std::string all;
             for (int i = 0; i < 1000; ++i) all += Format("X{}: 1\r\n", i);
             return all;
           }(),
       431},
      {"long target", "GET /" + std::string(9000, 'x') + " HTTP/1.1\r\n" + host + "\r\n", 431},
      {"body announced too large",
       "POST /echo HTTP/1.1\r\n" + host + "Content-Length: 1001\r\n\r\n", 413},
      {"huge content-length",
       "POST /echo HTTP/1.1\r\n" + host + "Content-Length: 18446744073709551615\r\n\r\n", 413},
      {"content-length beyond 64 bits",
       "POST /echo HTTP/1.1\r\n" + host + "Content-Length: 99999999999999999999999\r\n\r\n", 400},
      {"negative content-length", "POST /echo HTTP/1.1\r\n" + host + "Content-Length: -1\r\n\r\n",
       400},
      {"two lengths",
       "POST /echo HTTP/1.1\r\n" + host + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400},
      {"length and chunked",
       "POST /echo HTTP/1.1\r\n" + host +
           "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
       400},
      {"chunked twice",
       "POST /echo HTTP/1.1\r\n" + host +
           "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
       501},
      {"unknown encoding", "POST /echo HTTP/1.1\r\n" + host + "Transfer-Encoding: gzip\r\n\r\n",
       501},
      {"chunks beyond the limit",
       "POST /echo HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n7d0\r\n" +
           std::string(2000, 'x'),
       413},
      {"chunk size overflow",
       "POST /echo HTTP/1.1\r\n" + host +
           "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nx",
       400},
      {"bad chunk",
       "POST /echo HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\nzz\r\nx\r\n", 400},
      {"space before colon", "GET /echo HTTP/1.1\r\nHost : a\r\n\r\n", 400},
      {"NUL in a field", "GET /echo HTTP/1.1\r\n" + host + std::string("X: a\0b\r\n\r\n", 10), 400},
      {"escaped NUL", "GET /a%00b HTTP/1.1\r\n" + host + "\r\n", 400},
      {"dot segments", "GET /%2e%2e/etc HTTP/1.1\r\n" + host + "\r\n", 400},
      {"broken escape", "GET /%zz HTTP/1.1\r\n" + host + "\r\n", 400},
      {"fragment", "GET /echo#x HTTP/1.1\r\n" + host + "\r\n", 400},
      {"other expectation", "GET /echo HTTP/1.1\r\n" + host + "Expect: tea\r\n\r\n", 417},
  };
}

TEST_F(HttpServerTest, HostileRequestsGetTheRightStatus) {
  HttpServerConfig config;
  config.header_bytes_max = 4096;
  config.body_bytes_max = 1000;
  StartServer(config);
  for (const Hostile& hostile : HostileCases()) {
    RawClient client(server_->port());
    client.Send(hostile.bytes);
    const std::string answer = client.ReadResponse();
    EXPECT_TRUE(answer.starts_with(Format("HTTP/1.1 {} ", hostile.status)))
        << hostile.name << ": " << answer.substr(0, 200);
  }
  EXPECT_EQ(handled_, 0);
  EXPECT_TRUE(Exchange("GET /echo HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                  .starts_with("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, TornRequestsLeaveNothingBehind) {
  StartServer();
  const std::string whole =
      "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n0123456789";
  for (size_t cut = 1; cut < whole.size(); ++cut) {
    RawClient client(server_->port());
    client.Send(whole.substr(0, cut));
    if (cut % 2 == 0) {
      client.HalfClose();
      const std::string answer = client.ReadAll();
      EXPECT_TRUE(answer.empty() || answer.starts_with("HTTP/1.1 400")) << cut << answer;
    } else {
      client.Reset();
    }
  }
  EXPECT_EQ(handled_, 0);
  EXPECT_TRUE(Eventually([&] { return server_->stats().connections == 0; }));
  EXPECT_EQ(server_->stats().requests_in_flight, 0);
}

TEST_F(HttpServerTest, SlowHeaderAndSlowBodyAreCutInTime) {
  HttpServerConfig config;
  // Long enough that the clients below have sent what they send even on a busy machine.
  config.header_timeout_ms = 2000;
  config.body_timeout_ms = 2000;
  config.idle_timeout_ms = 2000;
  StartServer(config);
  RawClient slow_header(server_->port());
  RawClient slow_body(server_->port());
  RawClient silent(server_->port());
  RawClient idle(server_->port());
  idle.Send(kGetEcho);
  EXPECT_TRUE(idle.ReadResponse().starts_with("HTTP/1.1 200"));
  slow_header.Send("GET /echo HT");
  slow_body.Send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n0");
  for (int i = 0; i < 4; ++i) {
    // A trickle must not extend the deadline.
    slow_header.Send("T");
    slow_body.Send("1");
    EXPECT_EQ(silent.ReadUntil("never", 20), "");
  }
  EXPECT_TRUE(slow_header.ReadAll().starts_with("HTTP/1.1 408"));
  EXPECT_TRUE(slow_body.ReadAll().starts_with("HTTP/1.1 408"));
  EXPECT_EQ(silent.ReadAll(), "");
  EXPECT_TRUE(silent.ended());
  EXPECT_EQ(idle.ReadAll(), "");
  EXPECT_TRUE(idle.ended());
}

TEST_F(HttpServerTest, StreamsPiecesFromAnyThread) {
  StartServer();
  RawClient client(server_->port());
  client.Send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  const auto writer = WaitHeld();
  writer->StartStream({});
  std::thread producer([&] {
    for (int i = 0; i < 1000; ++i) EXPECT_TRUE(writer->Write(Format("data: {}\n\n", i)));
    writer->Finish();
  });
  const std::string answer = client.ReadUntil("\r\n0\r\n\r\n");
  producer.join();
  EXPECT_NE(answer.find("Transfer-Encoding: chunked"), std::string::npos);
  EXPECT_NE(answer.find("Content-Type: text/event-stream"), std::string::npos);
  size_t at = 0;
  for (int i = 0; i < 1000; ++i) {
    const size_t found = answer.find(Format("data: {}\n\n", i), at);
    // A piece may be cut by a chunk border only between pieces, never inside.
    ASSERT_NE(found, std::string::npos) << i;
    at = found;
  }
  // The connection serves the next request.
  client.Send(kGetEcho);
  EXPECT_TRUE(client.ReadResponse().starts_with("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, SilentStreamsCarryKeepAliveComments) {
  HttpServerConfig config;
  config.stream_keep_alive_ms = 50;
  StartServer(config);
  RawClient client(server_->port());
  client.Send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  const auto writer = WaitHeld();
  HttpStreamStart start;
  start.keep_alive = ": keep-alive\n\n";
  writer->StartStream(start);
  EXPECT_NE(client.ReadUntil(": keep-alive\n\n").find(": keep-alive\n\n"), std::string::npos);
  writer->Write("data: x\n\n");
  writer->Finish();
  EXPECT_NE(client.ReadUntil("\r\n0\r\n\r\n").find("data: x\n\n"), std::string::npos);
}

TEST_F(HttpServerTest, SeesTheClientLeaveWhileTheAnswerIsMade) {
  StartServer();
  RawClient client(server_->port());
  client.Send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  const auto writer = WaitHeld();
  client.Close();
  EXPECT_EQ(WaitClosed(), CloseReason::kPeerLeft);
  EXPECT_TRUE(writer->closed());
  writer->StartStream({});
  EXPECT_FALSE(writer->Write("data"));
  writer->Finish();
  EXPECT_TRUE(Eventually([&] { return server_->stats().connections == 0; }));
  EXPECT_EQ(server_->stats().peers_left_total, 1);
}

TEST_F(HttpServerTest, CutsASlowReaderAtTheByteLimit) {
  HttpServerConfig config;
  config.stream_buffer_bytes_max = 1 << 20;
  StartServer(config);
  RawClient client(server_->port());
  client.Send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  const auto writer = WaitHeld();
  writer->StartStream({});
  const std::string piece(10'000, 'x');
  int written = 0;
  while (written < 10'000 && writer->Write(piece)) ++written;
  EXPECT_LT(written, 10'000);
  EXPECT_EQ(WaitClosed(), CloseReason::kSlowReader);
  EXPECT_EQ(server_->stats().slow_readers_total, 1);
}

TEST_F(HttpServerTest, CutsAReaderThatTakesNothing) {
  HttpServerConfig config;
  config.write_stall_timeout_ms = 200;
  config.stream_buffer_bytes_max = 64 << 20;
  StartServer(config);
  RawClient client(server_->port());
  client.Send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  const auto writer = WaitHeld();
  writer->StartStream({});
  EXPECT_TRUE(writer->Write(std::string(32 << 20, 'x')));
  EXPECT_EQ(WaitClosed(), CloseReason::kSlowReader);
}

TEST_F(HttpServerTest, ForgottenRequestGets500) {
  StartServer();
  RawClient client(server_->port());
  client.Send("GET /drop HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_TRUE(client.ReadResponse().starts_with("HTTP/1.1 500"));
  client.Send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  WaitHeld()->StartStream({});
  DropHeld();
  const std::string answer = client.ReadAll();
  EXPECT_TRUE(client.ended());
  EXPECT_EQ(answer.find("\r\n0\r\n\r\n"), std::string::npos);
}

TEST_F(HttpServerTest, LimitsRequestsInFlightButNotHealth) {
  HttpServerConfig config;
  config.requests_in_flight_max = 2;
  StartServer(config);
  RawClient first(server_->port());
  RawClient second(server_->port());
  first.Send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  second.Send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  WaitHeld(1);
  RawClient third(server_->port());
  third.Send(kGetEcho);
  const std::string busy = third.ReadResponse();
  EXPECT_TRUE(busy.starts_with("HTTP/1.1 503")) << busy;
  EXPECT_NE(busy.find("Retry-After: 1"), std::string::npos);
  third.Send("GET /health HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_TRUE(third.ReadResponse().starts_with("HTTP/1.1 200"));
  DropHeld();
  EXPECT_TRUE(first.ReadResponse().starts_with("HTTP/1.1 500"));
  EXPECT_TRUE(second.ReadResponse().starts_with("HTTP/1.1 500"));
  third.Send(kGetEcho);
  EXPECT_TRUE(third.ReadResponse().starts_with("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, LimitsConnections) {
  HttpServerConfig config;
  config.connections_max = 2;
  StartServer(config);
  RawClient first(server_->port());
  RawClient second(server_->port());
  EXPECT_TRUE(Eventually([&] { return server_->stats().connections == 2; }));
  RawClient third(server_->port());
  EXPECT_TRUE(third.ReadAll().starts_with("HTTP/1.1 503"));
  first.Close();
  EXPECT_TRUE(Eventually([&] { return server_->stats().connections == 1; }));
  RawClient fourth(server_->port());
  fourth.Send(kGetEcho);
  EXPECT_TRUE(fourth.ReadResponse().starts_with("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, LimitsAllBodiesTogether) {
  HttpServerConfig config;
  config.body_bytes_in_flight_max = 1000;
  StartServer(config);
  RawClient first(server_->port());
  first.Send("POST /hold HTTP/1.1\r\nHost: a\r\nContent-Length: 800\r\n\r\n" +
             std::string(800, 'x'));
  WaitHeld();
  const std::string second =
      "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 800\r\n\r\n" + std::string(800, 'x');
  EXPECT_TRUE(Exchange(second).starts_with("HTTP/1.1 503"));
  DropHeld();
  EXPECT_TRUE(first.ReadResponse().starts_with("HTTP/1.1 500"));
  RawClient third(server_->port());
  third.Send(second);
  EXPECT_TRUE(third.ReadResponse().starts_with("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, DrainFinishesWhatRunsAndClosesTheRest) {
  StartServer();
  RawClient idle(server_->port());
  idle.Send(kGetEcho);
  idle.ReadResponse();
  RawClient busy(server_->port());
  busy.Send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  const auto writer = WaitHeld();
  const int port = server_->port();
  bool clean = false;
  std::thread drain([&] { clean = server_->Drain(10'000); });
  EXPECT_EQ(idle.ReadAll(), "");
  EXPECT_TRUE(idle.ended());
  EXPECT_FALSE(RawClient(port).connected());
  writer->Send({200, "text/plain", {}, "done"});
  const std::string answer = busy.ReadAll();
  busy.Close();
  drain.join();
  EXPECT_TRUE(clean);
  EXPECT_TRUE(answer.ends_with("done")) << answer;
  EXPECT_NE(answer.find("Connection: close"), std::string::npos);
}

TEST_F(HttpServerTest, DrainCutsWhatDoesNotEnd) {
  StartServer();
  RawClient busy(server_->port());
  busy.Send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  WaitHeld();
  EXPECT_FALSE(server_->Drain(50));
  EXPECT_EQ(WaitClosed(), CloseReason::kShutdown);
  EXPECT_EQ(busy.ReadAll(), "");
}

TEST_F(HttpServerTest, AddsCorsFieldsForAllowedOrigins) {
  HttpServerConfig config;
  config.cors_origins = {"http://one"};
  StartServer(config);
  const std::string tail = "Connection: close\r\n\r\n";
  EXPECT_NE(Exchange("GET /echo HTTP/1.1\r\nHost: a\r\nOrigin: http://one\r\n" + tail)
                .find("Access-Control-Allow-Origin: http://one\r\n"),
            std::string::npos);
  EXPECT_EQ(Exchange("GET /echo HTTP/1.1\r\nHost: a\r\nOrigin: http://two\r\n" + tail)
                .find("Access-Control"),
            std::string::npos);
}

TEST_F(HttpServerTest, PortInUseIsExplained) {
  StartServer();
  HttpServerConfig config;
  config.port = server_->port();
  HttpHooks hooks{[](const HttpRequest&) { return HttpAdmission(); },
                  [](HttpRequest, std::shared_ptr<ResponseWriter>) {},
                  [](int, const std::string&, const HttpRequest&) { return HttpResponse(); }};
  HttpServer other(config, hooks);
  const Status status = other.Start();
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("--port"), std::string::npos) << status.message();
}

TEST_F(HttpServerTest, ManyClientsAtOnce) {
  HttpServerConfig config;
  config.io_threads = 2;
  StartServer(config);
  std::vector<std::thread> clients;
  std::atomic<int> good{0};
  for (int c = 0; c < 8; ++c) {
    clients.emplace_back([&, c] {
      for (int i = 0; i < 50; ++i) {
        RawClient client(server_->port());
        const std::string body = Format("{}-{}", c, i);
        client.Send(Format("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{}",
                           body.size(), body));
        if (client.ReadResponse().ends_with("POST " + body)) ++good;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(good, 400);
}

}  // namespace
}  // namespace deepinfer
