// Finds the route of a request and guards it: key, method, limits. Decided once, on the header, by
// the same decoded path that the handler is chosen by. Filled before the server starts, then
// constant; used on I/O threads.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "net/http_server.h"
#include "server/auth.h"
#include "server/error_response.h"

namespace deepinfer {

struct Route {
  enum class Access { kKey, kPublic };  // kKey: a key is needed when any is configured
  std::string method;                   // GET answers HEAD as well
  std::string path;                     // exact; "/v1/models/*" also matches what follows the '/'
  std::function<void(HttpRequest request, std::shared_ptr<ResponseWriter> writer)> handle;
  Access access = Access::kKey;
  HttpAdmission::Limit limit = HttpAdmission::Limit::kCounted;
};

class Router {
 public:
  // Shapes the body of a refusal in the way of the dialect that the path belongs to.
  using ErrorMaker =
      std::function<HttpResponse(int, const std::string& message, const HttpRequest& head)>;
  Router(const Auth* auth, ErrorMaker error);

  void Add(Route route);
  HttpAdmission Admit(const HttpRequest& head) const;
  void Handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) const;

 private:
  const Route* Find(std::string_view method, std::string_view path) const;
  // "GET, HEAD, OPTIONS", empty when no route has this path.
  std::string AllowedMethods(std::string_view path) const;
  HttpResponse Preflight(const HttpRequest& head, const std::string& allowed) const;

  const Auth* auth_;  // outlives this
  ErrorMaker error_;
  std::vector<Route> routes_;
};

}  // namespace deepinfer
