// HTTP messages as plain values, shared by the server, the client and the routes.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace deepinfer {

// Field names compare without regard to case; order and repeats are kept.
class HttpHeaders {
 public:
  void Add(std::string name, std::string value) {
    fields_.emplace_back(std::move(name), std::move(value));
  }
  // First value of `name`, or nullptr.
  const std::string* Find(std::string_view name) const;
  // How often `name` occurs.
  int Count(std::string_view name) const;
  const std::vector<std::pair<std::string, std::string>>& fields() const { return fields_; }

 private:
  std::vector<std::pair<std::string, std::string>> fields_;
};

bool EqualsIgnoreCase(std::string_view a, std::string_view b);

struct HttpRequest {
  std::string method;  // "GET"; HEAD arrives as HEAD, the server drops the body of the answer
  std::string target;  // as sent
  std::string path;    // percent-decoded, starts with '/'
  std::string query;   // raw text after '?'
  HttpHeaders headers;
  std::string body;        // chunking removed
  std::string request_id;  // the client's x-request-id when well formed, else a fresh one
  std::string peer;        // "127.0.0.1:51234"
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  HttpHeaders headers;  // further fields; values must not hold CR or LF
  std::string body;
};

// "Not Found" for 404.
std::string_view HttpReason(int status);

}  // namespace deepinfer
