// Blocking HTTP/1.1 client for http and https: redirects, ranges, streaming bodies, timeouts,
// connections reused. Used by downloads and by benchmarks. One thread per HttpClient.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "deepinfer/status.h"
#include "net/http_types.h"

namespace deepinfer {

struct HttpClientConfig {
  int64_t connect_timeout_ms = 10'000;
  int64_t idle_timeout_ms = 60'000;  // without a byte in either direction
  int redirects_max = 5;
  int64_t header_bytes_max = 64 << 10;
  int64_t body_bytes_max = int64_t{1} << 31;  // of a body that Send collects
  // PEM file or directory of trusted authorities; empty: the first known place of this system.
  std::string ca_path;
  std::string http_proxy;   // "http://host:port" for http URLs; empty: direct
  std::string https_proxy;  // the same for https URLs, through CONNECT
};

struct HttpClientRequest {
  std::string method = "GET";
  std::string url;  // http://host[:port]/path or https://...
  HttpHeaders headers;
  std::string body;
  int64_t range_begin = 0;  // > 0: asks for the bytes from here on
};

struct HttpClientResponse {
  int status = 0;
  HttpHeaders headers;
  std::string body;       // what Send collected
  std::string final_url;  // after redirects
  // First byte of the body within the resource: range_begin when the server honoured it, else 0.
  int64_t body_offset = 0;
  int64_t content_length = -1;  // of this body; -1: not announced
};

// Receives the response head before the first byte of a 2xx body, then the body in pieces.
// A status other than ok stops the transfer and is returned.
struct HttpBodySink {
  std::function<Status(const HttpClientResponse& head)> on_head;  // may be empty
  std::function<Status(std::string_view piece)> on_piece;
};

class HttpClient {
 public:
  explicit HttpClient(HttpClientConfig config = {});
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Any status is a success here; errors are kUnavailable (no connection, broken transfer),
  // kDeadline (a timeout) and kInvalid (bad URL, limit passed). Redirects are followed for GET and
  // HEAD; authorization fields are dropped when the host changes, https never falls to http.
  Result<HttpClientResponse> Send(const HttpClientRequest& request);
  // As Send, but a 2xx body goes to `sink`; other bodies are collected in the response.
  Result<HttpClientResponse> Stream(const HttpClientRequest& request, const HttpBodySink& sink);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Parts of an absolute http or https URL.
struct HttpUrl {
  enum class Scheme { kHttp, kHttps } scheme = Scheme::kHttp;
  std::string host;  // without brackets
  int port = 80;
  std::string target;  // path and query, starts with '/'
};
Result<HttpUrl> ParseHttpUrl(std::string_view url);
// `location` of a redirect, absolute or relative to `base`.
Result<std::string> ResolveHttpUrl(const HttpUrl& base, std::string_view location);

}  // namespace deepinfer
