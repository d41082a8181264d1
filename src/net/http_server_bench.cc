// Cost of one server-sent event per stream: N streams, one producer, clients that only drain.
#include <benchmark/benchmark.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "base/format.h"
#include "net/http_server.h"
#include "net/sse.h"
#include "net/test_client.h"

namespace deepinfer {
namespace {

void BM_StreamEvents(benchmark::State& state) {
  const auto streams = static_cast<size_t>(state.range(0));
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::shared_ptr<ResponseWriter>> writers;
  HttpServerConfig config;
  config.port = 0;
  HttpServer server(config, {[](const HttpRequest&) { return HttpAdmission(); },
                             [&](HttpRequest, std::shared_ptr<ResponseWriter> writer) {
                               writer->StartStream({});
                               std::lock_guard lock(mutex);
                               writers.push_back(std::move(writer));
                               changed.notify_all();
                             },
                             [](int, const std::string&) { return HttpResponse(); }});
  if (!server.Start().ok()) {
    state.SkipWithError("cannot listen");
    return;
  }
  std::vector<std::unique_ptr<RawClient>> clients;
  for (size_t i = 0; i < streams; ++i) {
    clients.push_back(std::make_unique<RawClient>(server.port()));
    clients.back()->Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return writers.size() == i + 1; });
  }
  std::string event;
  AppendSseData(&event, std::string(180, 'x'));
  std::atomic<bool> stop{false};
  std::thread drain([&] {
    std::vector<char> sink(1 << 20);
    while (!stop) {
      for (const auto& client : clients) {
        while (::recv(client->fd(), sink.data(), sink.size(), MSG_DONTWAIT) > 0) {
        }
      }
    }
  });
  for (auto _ : state) {
    for (const auto& writer : writers) {
      if (!writer->Write(event)) state.SkipWithError("a stream was cut");
    }
    // The next round starts when this one has left, as a step would.
    while (writers.back()->buffered_bytes() > 0) std::this_thread::yield();
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(streams));
  for (const auto& writer : writers) writer->Finish();
  stop = true;
  drain.join();
  clients.clear();
  writers.clear();
}
BENCHMARK(BM_StreamEvents)->Arg(1)->Arg(32)->Arg(512)->UseRealTime();

}  // namespace
}  // namespace deepinfer
