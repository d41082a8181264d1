#include "net/http_client.h"

#include <algorithm>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <charconv>

#include "base/format.h"
#include "net/tcp_stream.h"

namespace deepinfer {

namespace beast = boost::beast;
namespace http = boost::beast::http;
using beast::string_view;
using boost::system::error_code;

namespace {

constexpr size_t kReadBytes = 256 << 10;

// Feeds one response: fields into `response`, the body into a function.
class ResponseParser final : public http::basic_parser<false> {
 public:
  ResponseParser(HttpClientResponse* response, std::function<Status(std::string_view)> on_body)
      : response_(response), on_body_(std::move(on_body)) {}
  const Status& failure() const { return failure_; }

 private:
  void on_request_impl(http::verb, string_view, string_view, int, error_code&) override {}
  void on_response_impl(int code, string_view, int, error_code&) override {
    response_->status = code;
  }
  void on_field_impl(http::field, string_view name, string_view value, error_code&) override {
    response_->headers.Add(std::string(name), std::string(value));
  }
  void on_header_impl(error_code&) override {}
  void on_body_init_impl(const boost::optional<std::uint64_t>&, error_code&) override {}
  std::size_t on_body_impl(string_view body, error_code& error) override {
    return Deliver(body, error);
  }
  void on_chunk_header_impl(std::uint64_t, string_view, error_code&) override {}
  std::size_t on_chunk_body_impl(std::uint64_t, string_view body, error_code& error) override {
    return Deliver(body, error);
  }
  void on_finish_impl(error_code&) override {}

  std::size_t Deliver(string_view body, error_code& error) {
    failure_ = on_body_(std::string_view(body.data(), body.size()));
    if (!failure_.ok()) error = make_error_code(boost::system::errc::operation_canceled);
    return body.size();
  }

  HttpClientResponse* response_;
  std::function<Status(std::string_view)> on_body_;
  Status failure_;
};

bool IsRedirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

std::string HostField(const HttpUrl& url) {
  const bool usual = url.port == (url.scheme == HttpUrl::Scheme::kHttps ? 443 : 80);
  const bool v6 = url.host.find(':') != std::string::npos;
  const std::string host = v6 ? "[" + url.host + "]" : url.host;
  return usual ? host : Format("{}:{}", host, url.port);
}

bool HasUnsafeByte(std::string_view text) {
  return std::any_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) <= 0x20 || c == 0x7F; });
}

// "bytes 100-199/200" -> 100.
int64_t RangeBegin(const HttpHeaders& headers) {
  const std::string* field = headers.Find("content-range");
  int64_t begin = 0;
  if (field == nullptr || !field->starts_with("bytes ")) return 0;
  std::from_chars(field->data() + 6, field->data() + field->size(), begin);
  return begin;
}

}  // namespace

Result<HttpUrl> ParseHttpUrl(std::string_view url) {
  HttpUrl out;
  std::string_view rest = url;
  if (rest.starts_with("http://")) {
    rest.remove_prefix(7);
  } else if (rest.starts_with("https://")) {
    rest.remove_prefix(8);
    out.scheme = HttpUrl::Scheme::kHttps;
    out.port = 443;
  } else {
    return Invalid(Format("URL \"{:.256}\" does not start with http:// or https://", url));
  }
  if (HasUnsafeByte(url)) return Invalid("the URL holds a space or a control character");
  const size_t end = std::min(rest.find_first_of("/?#"), rest.size());
  std::string_view authority = rest.substr(0, end);
  std::string_view target = rest.substr(end);
  target = target.substr(0, target.find('#'));
  out.target = target.empty() || target[0] != '/' ? "/" + std::string(target) : std::string(target);
  if (authority.find('@') != std::string_view::npos) {
    return Invalid("a URL with user and password is not understood; use a header");
  }
  std::string_view port;
  if (authority.starts_with('[')) {
    const size_t close = authority.find(']');
    if (close == std::string_view::npos) return Invalid("the URL has a broken IPv6 address");
    out.host = authority.substr(1, close - 1);
    port = authority.substr(close + 1);
  } else {
    const size_t colon = std::min(authority.find(':'), authority.size());
    out.host = authority.substr(0, colon);
    port = authority.substr(colon);
  }
  if (out.host.empty()) return Invalid(Format("URL \"{:.256}\" names no host", url));
  if (port.empty()) return out;
  port.remove_prefix(1);
  const auto [stop, error] = std::from_chars(port.data(), port.data() + port.size(), out.port);
  if (error != std::errc() || stop != port.data() + port.size() || out.port < 1 ||
      out.port > 65535) {
    return Invalid(Format("URL \"{:.256}\": the port is not in 1..65535", url));
  }
  return out;
}

Result<std::string> ResolveHttpUrl(const HttpUrl& base, std::string_view location) {
  if (location.starts_with("http://") || location.starts_with("https://")) {
    return std::string(location);
  }
  const std::string scheme = base.scheme == HttpUrl::Scheme::kHttps ? "https:" : "http:";
  if (location.starts_with("//")) return scheme + std::string(location);
  const std::string origin = scheme + "//" + HostField(base);
  if (location.starts_with('/')) return origin + std::string(location);
  if (location.empty() || location.find(':') < location.find('/')) {
    return Invalid(Format("redirect to \"{:.256}\", which is no http URL", location));
  }
  const std::string path = base.target.substr(0, base.target.find('?'));
  return origin + path.substr(0, path.rfind('/') + 1) + std::string(location);
}

struct HttpClient::Impl {
  explicit Impl(HttpClientConfig values) : config(std::move(values)) {}

  Status Open(const HttpUrl& url);
  Status OpenTunnel(const HttpUrl& url, const HttpUrl& proxy);
  std::string Serialise(const HttpClientRequest& request, const HttpUrl& url) const;
  Status Receive(const HttpClientRequest& request, const HttpUrl& url, const HttpBodySink* sink,
                 HttpClientResponse* response);
  Result<HttpClientResponse> Once(const HttpClientRequest& request, const HttpUrl& url,
                                  const HttpBodySink* sink);
  Result<HttpClientResponse> Follow(HttpClientRequest request, const HttpBodySink* sink);

  HttpClientConfig config;
  std::unique_ptr<TcpStream> stream;
  std::string stream_key;  // scheme, host and port that `stream` leads to
  beast::flat_buffer buffer;
  bool got_bytes = false;  // of the answer being received
};

// A proxy for http URLs gets the whole URL as its target; for https it makes a tunnel.
Status HttpClient::Impl::Open(const HttpUrl& url) {
  const bool tls = url.scheme == HttpUrl::Scheme::kHttps;
  const std::string key = Format("{} {}:{}", tls ? "https" : "http", url.host, url.port);
  if (stream && stream_key == key && buffer.size() == 0 && stream->reusable()) return {};
  stream.reset();
  buffer.clear();
  const std::string& proxy = tls ? config.https_proxy : config.http_proxy;
  if (proxy.empty()) {
    DI_ASSIGN(stream, TcpStream::Connect(url.host, url.port, config.connect_timeout_ms));
  } else {
    DI_ASSIGN(const HttpUrl place, ParseHttpUrl(proxy));
    DI_ASSIGN(stream, TcpStream::Connect(place.host, place.port, config.connect_timeout_ms));
    if (tls) DI_TRY(OpenTunnel(url, place));
  }
  if (tls) DI_TRY(stream->StartTls(url.host, config.ca_path, config.connect_timeout_ms));
  stream_key = key;
  return {};
}

Status HttpClient::Impl::OpenTunnel(const HttpUrl& url, const HttpUrl& proxy) {
  const bool v6 = url.host.find(':') != std::string::npos;
  const std::string place =
      v6 ? Format("[{}]:{}", url.host, url.port) : Format("{}:{}", url.host, url.port);
  DI_TRY(stream->Write(Format("CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n\r\n", place),
                       config.idle_timeout_ms));
  std::string head;
  // Byte by byte: what follows the head belongs to TLS.
  while (!head.ends_with("\r\n\r\n")) {
    char byte = 0;
    DI_ASSIGN(const size_t got, stream->Read({&byte, 1}, config.connect_timeout_ms));
    if (got == 0 || static_cast<int64_t>(head.size()) >= config.header_bytes_max) {
      return Unavailable(Format("proxy {}:{} gave no proper answer", proxy.host, proxy.port));
    }
    head.push_back(byte);
  }
  if (head.size() < 12 || head.substr(8, 4) != " 200") {
    return Unavailable(Format("proxy {}:{} refused the connection to {}: {:.100}", proxy.host,
                              proxy.port, place, head.substr(0, head.find('\r'))));
  }
  return {};
}

std::string HttpClient::Impl::Serialise(const HttpClientRequest& request,
                                        const HttpUrl& url) const {
  const bool through_proxy = url.scheme == HttpUrl::Scheme::kHttp && !config.http_proxy.empty();
  std::string out =
      Format("{} {}{} HTTP/1.1\r\nHost: {}\r\n", request.method,
             through_proxy ? "http://" + HostField(url) : "", url.target, HostField(url));
  if (request.headers.Find("user-agent") == nullptr) out += "User-Agent: deepinfer\r\n";
  if (request.headers.Find("accept") == nullptr) out += "Accept: */*\r\n";
  for (const auto& [name, value] : request.headers.fields()) {
    out += Format("{}: {}\r\n", name, value);
  }
  if (request.range_begin > 0) out += Format("Range: bytes={}-\r\n", request.range_begin);
  if (!request.body.empty() || request.method == "POST" || request.method == "PUT") {
    out += Format("Content-Length: {}\r\n", request.body.size());
  }
  return out + "\r\n";
}

Status HttpClient::Impl::Receive(const HttpClientRequest& request, const HttpUrl& url,
                                 const HttpBodySink* sink, HttpClientResponse* response) {
  bool streams = false;
  const auto on_body = [&](std::string_view piece) -> Status {
    if (streams) return sink->on_piece(piece);
    if (static_cast<int64_t>(response->body.size() + piece.size()) > config.body_bytes_max) {
      return Invalid(
          Format("{}: the body is larger than {} bytes", url.host, config.body_bytes_max));
    }
    response->body.append(piece);
    return {};
  };
  std::unique_ptr<ResponseParser> parser;
  const auto restart = [&] {
    *response = HttpClientResponse();
    parser = std::make_unique<ResponseParser>(response, on_body);
    parser->header_limit(static_cast<std::uint32_t>(config.header_bytes_max));
    parser->body_limit(boost::none);
    parser->skip(request.method == "HEAD");
  };
  restart();
  got_bytes = false;
  for (bool ended = false; !parser->is_done();) {
    if (buffer.size() == 0 && !ended) {
      const auto space = buffer.prepare(kReadBytes);
      DI_ASSIGN(const size_t got, stream->Read({static_cast<char*>(space.data()), space.size()},
                                               config.idle_timeout_ms));
      buffer.commit(got);
      got_bytes = got_bytes || got > 0;
      ended = got == 0;
    }
    error_code error;
    if (buffer.size() == 0) {
      const bool headless = !parser->is_header_done();
      if (!headless) parser->put_eof(error);
      if (headless || error) {
        return Unavailable(
            Format("{} closed the connection before the answer was complete", url.host));
      }
      break;
    }
    const bool had_header = parser->is_header_done();
    buffer.consume(parser->put(buffer.data(), error));
    if (error == http::error::need_more) {
      const auto space = buffer.prepare(kReadBytes);
      DI_ASSIGN(const size_t got, stream->Read({static_cast<char*>(space.data()), space.size()},
                                               config.idle_timeout_ms));
      if (got == 0) return Unavailable(Format("{} closed the connection early", url.host));
      got_bytes = true;
      buffer.commit(got);
      continue;
    }
    if (!parser->failure().ok()) return parser->failure();
    if (error) return Unavailable(Format("{}: bad HTTP answer: {}", url.host, error.message()));
    if (had_header || !parser->is_header_done()) continue;
    if (response->status / 100 == 1) {
      restart();
      continue;
    }
    const auto length = parser->content_length();
    if (length) response->content_length = static_cast<int64_t>(*length);
    if (response->status == 206) response->body_offset = RangeBegin(response->headers);
    streams = sink != nullptr && response->status / 100 == 2;
    if (streams && sink->on_head) DI_TRY(sink->on_head(*response));
  }
  if (!parser->keep_alive()) stream.reset();
  return {};
}

Result<HttpClientResponse> HttpClient::Impl::Once(const HttpClientRequest& request,
                                                  const HttpUrl& url, const HttpBodySink* sink) {
  // A kept connection may have died meanwhile: then a fresh one gets the same request once.
  for (int attempt = 0;; ++attempt) {
    const bool kept = stream != nullptr;
    DI_TRY(Open(url));
    HttpClientResponse response;
    Status status = stream->Write(Serialise(request, url) + request.body, config.idle_timeout_ms);
    if (status.ok()) status = Receive(request, url, sink, &response);
    if (status.ok()) return response;
    stream.reset();
    buffer.clear();
    if (!kept || got_bytes || attempt > 0 || status.code() != StatusCode::kUnavailable) {
      return status;
    }
  }
}

Result<HttpClientResponse> HttpClient::Impl::Follow(HttpClientRequest request,
                                                    const HttpBodySink* sink) {
  for (int hops = 0;; ++hops) {
    DI_ASSIGN(const HttpUrl url, ParseHttpUrl(request.url));
    DI_ASSIGN(HttpClientResponse response, Once(request, url, sink));
    response.final_url = request.url;
    const std::string* location = response.headers.Find("location");
    const bool safe = request.method == "GET" || request.method == "HEAD";
    if (!IsRedirect(response.status) || location == nullptr || !safe) return response;
    if (hops >= config.redirects_max) {
      return Invalid(Format("{}: more than {} redirects", request.url, config.redirects_max));
    }
    DI_ASSIGN(request.url, ResolveHttpUrl(url, *location));
    DI_ASSIGN(const HttpUrl next, ParseHttpUrl(request.url));
    if (url.scheme == HttpUrl::Scheme::kHttps && next.scheme == HttpUrl::Scheme::kHttp) {
      return Invalid(Format("{} redirects from https to http, which is refused", url.host));
    }
    if (next.host == url.host && next.port == url.port) continue;
    HttpHeaders kept;
    for (const auto& [name, value] : request.headers.fields()) {
      if (!EqualsIgnoreCase(name, "authorization") && !EqualsIgnoreCase(name, "cookie")) {
        kept.Add(name, value);
      }
    }
    request.headers = std::move(kept);
  }
}

HttpClient::HttpClient(HttpClientConfig config)
    : impl_(std::make_unique<Impl>(std::move(config))) {}
HttpClient::~HttpClient() = default;

Result<HttpClientResponse> HttpClient::Send(const HttpClientRequest& request) {
  return impl_->Follow(request, nullptr);
}

Result<HttpClientResponse> HttpClient::Stream(const HttpClientRequest& request,
                                              const HttpBodySink& sink) {
  return impl_->Follow(request, &sink);
}

}  // namespace deepinfer
