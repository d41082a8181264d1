// Bytes of a client against one connection of the server, in one thread: nothing may crash, and
// when the client is gone nothing may be left in the books.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <cstdlib>

#include "net/http_connection.h"
#include "net/http_io.h"

namespace deepinfer {
namespace {

void Answer(HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
  if (request.path == "/d") return;
  if (request.path == "/s") {
    writer->StartStream({});
    writer->Write(request.body);
    writer->Write("data: x\n\n");
    writer->Finish();
    return;
  }
  writer->Send({200, "text/plain", {}, request.query + request.body});
}

HttpAdmission Admit(const HttpRequest& head) {
  HttpAdmission admission;
  if (head.path == "/e") admission.limit = HttpAdmission::Limit::kExempt;
  if (head.path == "/r") admission.refusal = HttpResponse{401, "text/plain", {}, "no"};
  return admission;
}

void DrainInput(int fd) {
  char sink[4096];
  while (::recv(fd, sink, sizeof(sink), MSG_DONTWAIT) > 0) {
  }
}

// The first byte says how the rest is cut into pieces.
void Feed(IoThread* thread, int client, const uint8_t* data, size_t size) {
  const size_t piece_max = size_t{1} << (data[0] % 13);
  for (size_t at = 1; at < size;) {
    const size_t piece = std::min(piece_max, size - at);
    const ssize_t sent = ::send(client, data + at, piece, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent <= 0) break;
    at += static_cast<size_t>(sent);
    thread->io().poll();
    DrainInput(client);
  }
}

}  // namespace
}  // namespace deepinfer

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  deepinfer::HttpShared shared;
  shared.config.header_bytes_max = 2048;
  shared.config.body_bytes_max = 4096;
  shared.config.body_bytes_in_flight_max = 3000;
  shared.config.pipelined_bytes_max = 1024;
  shared.config.cors_origins = {"http://a"};
  shared.hooks.admit = deepinfer::Admit;
  shared.hooks.handle = deepinfer::Answer;
  shared.hooks.error = [](int status, const std::string& message, const deepinfer::HttpRequest&) {
    return deepinfer::HttpResponse{status, "text/plain", {}, message};
  };
  const auto thread = std::make_shared<deepinfer::IoThread>(&shared);
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return 0;
  boost::asio::ip::tcp::socket socket(thread->io());
  boost::system::error_code error;
  socket.assign(boost::asio::ip::tcp::v4(), ends[0], error);
  if (error) std::abort();
  ++shared.counters.connections;
  thread->Adopt(std::move(socket), "peer");
  deepinfer::Feed(thread.get(), ends[1], data, size);
  ::close(ends[1]);
  // A few rounds see the end and clean up.
  for (int i = 0; i < 8 && shared.counters.connections > 0; ++i) thread->io().poll();
  thread->CutAll();
  thread->io().poll();
  thread->Stop();
  const deepinfer::HttpCounters& counters = shared.counters;
  if (counters.connections != 0 || counters.requests_in_flight != 0 || counters.body_bytes != 0) {
    std::abort();
  }
  return 0;
}
