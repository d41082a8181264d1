// A server around a scripted engine and the tiny tokenizer, made from a "server" line of a file.
#pragma once

#include <deque>
#include <future>
#include <memory>
#include <string>

#include "net/http_client.h"
#include "net/test_client.h"
#include "server/server.h"
#include "tests/api/test_file.h"

namespace deepinfer {

class ApiTestServer {
 public:
  // `options`: "name=value ..."; values may be JSON strings. README.md lists them.
  static Result<std::unique_ptr<ApiTestServer>> Start(const std::string& options);
  ~ApiTestServer();

  // Lets the model that "loading" holds back arrive.
  Status Release();
  Result<HttpClientResponse> Send(const ApiExchange& exchange);
  // Sends, and returns when the engine has the request.
  Status Hold(const ApiExchange& exchange);
  // Cuts the connections of Hold and waits until nothing runs any more.
  Status Leave();

 private:
  struct Options;
  ApiTestServer();
  // What /health counts.
  struct Load {
    int64_t running = -1;
    int64_t waiting = -1;
  };
  Result<Load> ReadLoad();
  Status AwaitUnfinished(int64_t count);

  std::unique_ptr<Options> options_;
  std::promise<void> release_;
  bool released_ = false;
  std::promise<Status> loaded_;
  std::unique_ptr<Server> server_;
  HttpClient client_;
  std::deque<RawClient> held_;
};

}  // namespace deepinfer
