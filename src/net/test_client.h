// A raw TCP client for tests of the HTTP server: sends bytes as they are, reads what comes.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <string_view>

namespace deepinfer {

class RawClient {
 public:
  explicit RawClient(int port) {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~RawClient() { Close(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool connected() const { return connected_; }
  int fd() const { return fd_; }

  bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }

  // Reads until `text` holds `marker`, the peer closes, or time is up.
  std::string ReadUntil(std::string_view marker, int timeout_ms = 60'000) {
    return ReadWhile(
        [marker](const std::string& text) { return text.find(marker) == std::string::npos; },
        timeout_ms);
  }
  // Reads until the peer closes. Sets ended().
  std::string ReadAll(int timeout_ms = 60'000) {
    return ReadWhile([](const std::string&) { return true; }, timeout_ms);
  }
  // One answer with a Content-Length; what follows stays for the next call.
  std::string ReadResponse(int timeout_ms = 60'000) {
    size_t whole = std::string::npos;
    std::string text = ReadWhile(
        [&whole](const std::string& seen) {
          const size_t end = seen.find("\r\n\r\n");
          if (end == std::string::npos) return true;
          const size_t field = seen.find("Content-Length: ");
          const size_t length = field < end ? std::stoul(seen.substr(field + 16)) : 0;
          whole = end + 4 + length;
          return seen.size() < whole;
        },
        timeout_ms);
    if (whole < text.size()) {
      rest_ = text.substr(whole);
      text.resize(whole);
    }
    return text;
  }
  bool ended() const { return ended_; }
  void HalfClose() { ::shutdown(fd_, SHUT_WR); }
  // Resets the connection instead of closing it in order.
  void Reset() {
    const linger hard{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
    Close();
  }
  void Close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  template <typename More>
  std::string ReadWhile(More more, int timeout_ms) {
    std::string text;
    text.swap(rest_);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
    char piece[16384];
    while (more(text)) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          deadline - std::chrono::steady_clock::now());
      pollfd waiting{fd_, POLLIN, 0};
      if (left.count() <= 0 || ::poll(&waiting, 1, static_cast<int>(left.count())) <= 0) break;
      const ssize_t got = ::recv(fd_, piece, sizeof(piece), 0);
      if (got <= 0) {
        ended_ = true;
        break;
      }
      text.append(piece, static_cast<size_t>(got));
    }
    return text;
  }

  int fd_ = -1;
  bool connected_ = false;
  bool ended_ = false;
  std::string rest_;
};

}  // namespace deepinfer
