#include "net/http_client.h"

#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>

#include "base/format.h"
#include "net/http_server.h"
#include "net/sse.h"
#include "net/test_peer.h"

namespace deepinfer {
namespace {

// A server with a 100,000 byte resource at /file that understands ranges.
class HttpClientTest : public testing::Test {
 protected:
  HttpClientTest() {
    for (int i = 0; i < 100'000; ++i) file_.push_back(static_cast<char>('a' + i % 26));
    HttpServerConfig config;
    config.port = 0;
    HttpHooks hooks;
    hooks.admit = [](const HttpRequest&) { return HttpAdmission(); };
    hooks.error = [](int status, const std::string& message, const deepinfer::HttpRequest&) {
      return HttpResponse{status, "text/plain", {}, message};
    };
    hooks.handle = [this](HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
      Handle(std::move(request), *writer);
    };
    server_ = std::make_unique<HttpServer>(config, hooks);
    EXPECT_TRUE(server_->Start().ok());
    base_ = Format("http://127.0.0.1:{}", server_->port());
  }

  void Handle(HttpRequest request, ResponseWriter& writer) {
    HttpResponse response{200, "text/plain", {}, ""};
    if (request.path == "/file") {
      size_t begin = 0;
      if (const std::string* range = request.headers.Find("range")) {
        begin = std::stoul(range->substr(6));
        response.status = 206;
        response.headers.Add("Content-Range",
                             Format("bytes {}-{}/{}", begin, file_.size() - 1, file_.size()));
      }
      response.body = file_.substr(begin);
    } else if (request.path == "/moved") {
      response.status = 302;
      response.headers.Add("Location", "file");
    } else if (request.path == "/loop") {
      response.status = 302;
      response.headers.Add("Location", "/loop");
    } else if (request.path == "/away") {
      response.status = 307;
      response.headers.Add("Location", Format("http://localhost:{}/headers", server_->port()));
    } else if (request.path == "/headers") {
      const std::string* key = request.headers.Find("authorization");
      response.body = key == nullptr ? "none" : *key;
    } else if (request.path == "/stream") {
      writer.StartStream({});
      for (int i = 0; i < 100; ++i) writer.Write(Format(": note\n\ndata: {}\n\n", i));
      writer.Finish();
      return;
    } else {
      response.body = request.method + " " + request.body;
    }
    writer.Send(std::move(response));
  }

  std::string file_;
  std::unique_ptr<HttpServer> server_;
  std::string base_;
};

HttpClientRequest Get(const std::string& url) {
  HttpClientRequest request;
  request.url = url;
  return request;
}

TEST_F(HttpClientTest, SendsBodiesAndReusesTheConnection) {
  HttpClient client;
  for (int i = 0; i < 3; ++i) {
    HttpClientRequest request = Get(base_ + "/echo");
    request.method = "POST";
    request.body = Format("body {}", i);
    const auto response = client.Send(request);
    ASSERT_TRUE(response.ok()) << response.status().message();
    EXPECT_EQ(response->status, 200);
    EXPECT_EQ(response->body, Format("POST body {}", i));
  }
  EXPECT_EQ(server_->stats().connections, 1);
}

TEST_F(HttpClientTest, HeadHasALengthAndNoBody) {
  HttpClient client;
  HttpClientRequest request = Get(base_ + "/file");
  request.method = "HEAD";
  const auto response = client.Send(request);
  ASSERT_TRUE(response.ok()) << response.status().message();
  EXPECT_EQ(response->content_length, 100'000);
  EXPECT_EQ(response->body, "");
}

TEST_F(HttpClientTest, StreamsARangeThroughARedirect) {
  HttpClient client;
  HttpClientRequest request = Get(base_ + "/moved");
  request.range_begin = 99'000;
  std::string got;
  int64_t offset = -1;
  HttpBodySink sink;
  sink.on_head = [&](const HttpClientResponse& head) {
    offset = head.body_offset;
    return Status();
  };
  sink.on_piece = [&](std::string_view piece) {
    got.append(piece);
    return Status();
  };
  const auto response = client.Stream(request, sink);
  ASSERT_TRUE(response.ok()) << response.status().message();
  EXPECT_EQ(response->status, 206);
  EXPECT_EQ(response->final_url, base_ + "/file");
  EXPECT_EQ(offset, 99'000);
  EXPECT_EQ(got, file_.substr(99'000));
}

TEST_F(HttpClientTest, SinkCanStopTheTransfer) {
  HttpClient client;
  HttpBodySink sink;
  sink.on_piece = [](std::string_view) { return Exhausted("disk full"); };
  const auto response = client.Stream(Get(base_ + "/file"), sink);
  ASSERT_FALSE(response.ok());
  EXPECT_EQ(response.status().message(), "disk full");
}

TEST_F(HttpClientTest, RedirectsHaveALimitAndDropTheKey) {
  HttpClient client;
  EXPECT_FALSE(client.Send(Get(base_ + "/loop")).ok());
  HttpClientRequest request = Get(base_ + "/headers");
  request.headers.Add("Authorization", "Bearer x");
  EXPECT_EQ(client.Send(request)->body, "Bearer x");
  request.url = base_ + "/away";
  const auto response = client.Send(request);
  if (!response.ok()) GTEST_SKIP() << "localhost does not resolve: " << response.status().message();
  EXPECT_EQ(response->body, "none");
}

TEST_F(HttpClientTest, ReadsEventStreams) {
  HttpClient client;
  SseParser parser;
  std::vector<std::string> events;
  HttpBodySink sink;
  sink.on_piece = [&](std::string_view piece) {
    return parser.Push(piece, [&](const SseEvent& event) {
      events.push_back(event.data);
      return Status();
    });
  };
  ASSERT_TRUE(client.Stream(Get(base_ + "/stream"), sink).ok());
  ASSERT_EQ(events.size(), 100);
  EXPECT_EQ(events[99], "99");
}

TEST(HttpClientPeerTest, BrokenAnswersAreErrors) {
  const std::vector<std::string> answers = {
      "",
      "garbage\r\n\r\n",
      "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
      "HTTP/1.1 200 OK\r\nX: " + std::string(100'000, 'x') + "\r\n\r\n",
      "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n",
      "HTTP/1.1 302 Found\r\nLocation: ftp://x/\r\nContent-Length: 0\r\n\r\n",
  };
  for (const std::string& answer : answers) {
    ScriptedPeer peer({answer});
    HttpClient client;
    const auto response = client.Send(Get(Format("http://127.0.0.1:{}/", peer.port())));
    EXPECT_FALSE(response.ok()) << "answer: " << answer.substr(0, 60);
  }
}

TEST(HttpClientPeerTest, BodyWithoutLengthEndsWithTheConnection) {
  ScriptedPeer peer({"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\nall of it"});
  HttpClient client;
  const auto response = client.Send(Get(Format("http://127.0.0.1:{}/a?b", peer.port())));
  ASSERT_TRUE(response.ok()) << response.status().message();
  EXPECT_EQ(response->body, "all of it");
  EXPECT_TRUE(peer.request(0).starts_with("GET /a?b HTTP/1.1\r\n"));
}

TEST(HttpClientPeerTest, CollectedBodiesHaveALimit) {
  ScriptedPeer peer({"HTTP/1.1 200 OK\r\n\r\n" + std::string(2000, 'x')});
  HttpClientConfig config;
  config.body_bytes_max = 1000;
  HttpClient client(config);
  EXPECT_FALSE(client.Send(Get(Format("http://127.0.0.1:{}/", peer.port()))).ok());
}

TEST(HttpClientPeerTest, SilentPeerTimesOut) {
  Listener listener;
  HttpClientConfig config;
  config.idle_timeout_ms = 50;
  HttpClient client(config);
  const auto response = client.Send(Get(Format("http://127.0.0.1:{}/", listener.port())));
  ASSERT_FALSE(response.ok());
  EXPECT_EQ(response.status().code(), StatusCode::kDeadline);
}

TEST(HttpClientPeerTest, ProxyGetsTheWholeUrl) {
  ScriptedPeer proxy(
      {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "HTTP/1.1 403 Forbidden\r\n\r\n"});
  HttpClientConfig config;
  config.http_proxy = Format("http://127.0.0.1:{}", proxy.port());
  config.https_proxy = config.http_proxy;
  HttpClient client(config);
  const auto response = client.Send(Get("http://models.example/x"));
  ASSERT_TRUE(response.ok()) << response.status().message();
  EXPECT_TRUE(proxy.request(0).starts_with("GET http://models.example/x HTTP/1.1\r\n"));
  const auto refused = client.Send(Get("https://models.example/x"));
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("403"), std::string::npos);
}

TEST(HttpClientPeerTest, TlsChecksTheCertificate) {
  std::signal(SIGPIPE, SIG_IGN);
  const std::string pem =
      (std::filesystem::temp_directory_path() / "deepinfer_http_client_test.pem").string();
  TlsPeer good("localhost", pem);
  HttpClientConfig config;
  config.ca_path = pem;
  const auto response = HttpClient(config).Send(Get(Format("https://localhost:{}/", good.port())));
  ASSERT_TRUE(response.ok()) << response.status().message();
  EXPECT_EQ(response->body, "secret");
  // The name differs: 127.0.0.1 is not in the certificate.
  EXPECT_FALSE(HttpClient(config).Send(Get(Format("https://127.0.0.1:{}/", good.port()))).ok());
  // The authority is not trusted.
  TlsPeer other("localhost", pem + ".other");
  const auto untrusted =
      HttpClient(config).Send(Get(Format("https://localhost:{}/", other.port())));
  ASSERT_FALSE(untrusted.ok());
  EXPECT_NE(untrusted.status().message().find("not trusted"), std::string::npos)
      << untrusted.status().message();
}

TEST(HttpUrlTest, ParsesAndRefuses) {
  const auto url = ParseHttpUrl("https://[::1]:8443/a?b#c");
  ASSERT_TRUE(url.ok());
  EXPECT_EQ(url->host, "::1");
  EXPECT_EQ(url->port, 8443);
  EXPECT_EQ(url->target, "/a?b");
  EXPECT_EQ(ParseHttpUrl("http://h")->target, "/");
  EXPECT_EQ(ParseHttpUrl("http://h?x")->target, "/?x");
  for (const char* bad : {"", "h/a", "ftp://h/", "http://", "http://h:0/", "http://h:99999/",
                          "http://h:1x/", "http://u:p@h/", "http://[::1/", "http://h/a b"}) {
    EXPECT_FALSE(ParseHttpUrl(bad).ok()) << bad;
  }
  const HttpUrl base = *ParseHttpUrl("http://h:81/d/e?q");
  EXPECT_EQ(*ResolveHttpUrl(base, "/x"), "http://h:81/x");
  EXPECT_EQ(*ResolveHttpUrl(base, "x"), "http://h:81/d/x");
  EXPECT_EQ(*ResolveHttpUrl(base, "//o/x"), "http://o/x");
  EXPECT_FALSE(ResolveHttpUrl(base, "javascript:x").ok());
}

TEST(SseTest, ParsesAnyCut) {
  const std::string text =
      ": c\r\nevent: a\r\ndata: 1\r\ndata: 2\r\n\r\ndata:x\n\nevent: y\n\n"
      "data\n\rdata: z\r\r";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    SseParser parser;
    std::vector<std::string> seen;
    const auto take = [&](const SseEvent& event) {
      seen.push_back(event.event + "|" + event.data);
      return Status();
    };
    ASSERT_TRUE(parser.Push(text.substr(0, cut), take).ok());
    ASSERT_TRUE(parser.Push(text.substr(cut), take).ok());
    EXPECT_EQ(seen, (std::vector<std::string>{"a|1\n2", "|x", "|", "|z"})) << cut;
  }
  SseParser small(10);
  EXPECT_FALSE(small.Push("data: 0123456789", [](const SseEvent&) { return Status(); }).ok());
}

}  // namespace
}  // namespace deepinfer
