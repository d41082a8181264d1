#include "server/router.h"

#include "base/format.h"

namespace deepinfer {

namespace {

bool Matches(const Route& route, std::string_view path) {
  if (!route.path.ends_with("/*")) return route.path == path;
  const std::string_view prefix(route.path.data(), route.path.size() - 1);
  return path.size() > prefix.size() && path.starts_with(prefix);
}

}  // namespace

Router::Router(const Auth* auth, ErrorMaker error) : auth_(auth), error_(std::move(error)) {}

void Router::Add(Route route) { routes_.push_back(std::move(route)); }

const Route* Router::Find(std::string_view method, std::string_view path) const {
  for (const Route& route : routes_) {
    const bool fits = route.method == method || (route.method == "GET" && method == "HEAD");
    if (fits && Matches(route, path)) return &route;
  }
  return nullptr;
}

std::string Router::AllowedMethods(std::string_view path) const {
  std::string allowed;
  for (const Route& route : routes_) {
    if (!Matches(route, path)) continue;
    if (!allowed.empty()) allowed += ", ";
    allowed += route.method == "GET" ? "GET, HEAD" : route.method;
  }
  return allowed.empty() ? allowed : allowed + ", OPTIONS";
}

// Browsers ask with OPTIONS, without a key, before a request that carries one.
HttpResponse Router::Preflight(const HttpRequest& head, const std::string& allowed) const {
  HttpResponse response{204, "", {}, ""};
  response.headers.Add("Allow", allowed);
  if (head.headers.Find("access-control-request-method") != nullptr) {
    response.headers.Add("Access-Control-Allow-Methods", allowed);
    response.headers.Add("Access-Control-Allow-Headers",
                         "authorization, content-type, x-api-key, x-request-id, anthropic-version, "
                         "anthropic-beta");
    response.headers.Add("Access-Control-Max-Age", "600");
  }
  return response;
}

HttpAdmission Router::Admit(const HttpRequest& head) const {
  HttpAdmission admission;
  const Route* route = Find(head.method, head.path);
  const std::string allowed = route == nullptr ? AllowedMethods(head.path) : std::string();
  if (head.method == "OPTIONS" && (!allowed.empty() || head.path == "*")) {
    admission.refusal = Preflight(head, allowed.empty() ? "GET, HEAD, POST, OPTIONS" : allowed);
    return admission;
  }
  // Denied by default: what is unknown needs a key, too, before it is said to be unknown.
  const bool open = route != nullptr && route->access == Route::Access::kPublic;
  if (!open && !auth_->Allows(head.headers)) {
    admission.refusal =
        error_(401, "missing or wrong API key; send it as \"Authorization: Bearer KEY\"", head);
    admission.refusal->headers.Add("WWW-Authenticate", "Bearer");
    return admission;
  }
  if (route != nullptr) {
    admission.limit = route->limit;
    return admission;
  }
  if (allowed.empty()) {
    admission.refusal = error_(404, Format("no route {:.128}", head.path), head);
  } else {
    admission.refusal = error_(
        405,
        Format("{:.32} is not allowed on {:.128}; allowed: {}", head.method, head.path, allowed),
        head);
    admission.refusal->headers.Add("Allow", allowed);
  }
  return admission;
}

void Router::Handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) const {
  const Route* route = Find(request.method, request.path);
  if (route == nullptr) {
    writer->Send(error_(404, Format("no route {:.128}", request.path), request));
    return;
  }
  route->handle(std::move(request), std::move(writer));
}

}  // namespace deepinfer
