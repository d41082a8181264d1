// A blocking byte stream with timeouts over TCP, plain or TLS. Owned and used by one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "deepinfer/status.h"

namespace deepinfer {

class TcpStream {
 public:
  static Result<std::unique_ptr<TcpStream>> Connect(const std::string& host, int port,
                                                    int64_t timeout_ms);
  ~TcpStream();
  TcpStream(const TcpStream&) = delete;
  TcpStream& operator=(const TcpStream&) = delete;

  // Starts TLS as the client; the certificate must be valid for `host`. `ca_path` as in
  // HttpClientConfig.
  Status StartTls(const std::string& host, const std::string& ca_path, int64_t timeout_ms);
  // Bytes read, 0 at the end of the stream.
  Result<size_t> Read(std::span<char> into, int64_t timeout_ms);
  Status Write(std::string_view bytes, int64_t timeout_ms);
  // False when the peer has closed or sent what nobody asked for.
  bool reusable() const;

 private:
  struct Impl;
  explicit TcpStream(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
