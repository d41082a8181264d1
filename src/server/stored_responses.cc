#include "server/stored_responses.h"

#include "base/format.h"

namespace deepinfer {

Result<Json> AnswerStoredResponse(const HttpRequest& request, ResponseStore* store) {
  constexpr std::string_view kPrefix = "/v1/responses/";
  const std::string_view rest = std::string_view(request.path).substr(kPrefix.size());
  const size_t slash = rest.find('/');
  const std::string_view id = rest.substr(0, slash);
  const std::string_view action =
      slash == std::string_view::npos ? std::string_view() : rest.substr(slash + 1);
  const bool reads = request.method == "GET" || request.method == "HEAD";
  const bool plain = slash == std::string_view::npos;
  const bool known = plain ? reads || request.method == "DELETE"
                           : (reads && action == "input_items") ||
                                 (request.method == "POST" && action == "cancel");
  if (!known) return NotFound(Format("no route {:.32} {:.128}", request.method, request.path));
  if (store == nullptr) return NotFound("this server keeps no responses");
  if (action == "input_items") return store->InputItems(id, request.query);
  if (action == "cancel") return store->Cancel(id);
  if (request.method == "DELETE") return store->Delete(id);
  if (request.query.find("stream=true") != std::string::npos) {
    return Invalid("a stored response cannot be streamed again: read it without \"stream\"")
        .WithParam("stream");
  }
  return store->Get(id);
}

}  // namespace deepinfer
