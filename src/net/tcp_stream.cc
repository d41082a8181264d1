#include "net/tcp_stream.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/format.h"

namespace deepinfer {

namespace {

using Clock = std::chrono::steady_clock;

// Where distributions keep their trusted authorities.
constexpr const char* kCaPlaces[] = {
    "/etc/ssl/certs/ca-certificates.crt",                 // Debian, Ubuntu, Arch, Alpine
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  // Fedora, RHEL
    "/etc/pki/tls/certs/ca-bundle.crt",                   // older RHEL
    "/etc/ssl/ca-bundle.pem",                             // SUSE
    "/etc/ssl/cert.pem",                                  // Alpine, BSD
    "/etc/ssl/certs",
};

enum class Want { kRead, kWrite };

Status WaitFor(int fd, Want want, Clock::time_point deadline, const char* doing) {
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd waiting{fd, static_cast<short>(want == Want::kRead ? POLLIN : POLLOUT), 0};
    const int ready = left > 0 ? ::poll(&waiting, 1, static_cast<int>(left)) : 0;
    if (ready > 0) return {};
    if (ready == 0) return {StatusCode::kDeadline, Format("timeout while {}", doing)};
    if (errno != EINTR) return Unavailable(Format("poll: {}", std::strerror(errno)));
  }
}

Clock::time_point After(int64_t timeout_ms) {
  return Clock::now() + std::chrono::milliseconds(timeout_ms);
}

Result<int> ConnectOne(const addrinfo& address, Clock::time_point deadline) {
  const int fd =
      ::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, address.ai_protocol);
  if (fd < 0) return Unavailable(Format("socket: {}", std::strerror(errno)));
  Status status;
  if (::connect(fd, address.ai_addr, address.ai_addrlen) != 0) {
    if (errno == EINPROGRESS) {
      status = WaitFor(fd, Want::kWrite, deadline, "connecting");
      int error = 0;
      socklen_t size = sizeof(error);
      if (status.ok() && ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error != 0) {
        status = Unavailable(std::strerror(error));
      }
    } else {
      status = Unavailable(std::strerror(errno));
    }
  }
  if (!status.ok()) {
    ::close(fd);
    return status;
  }
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return fd;
}

std::string TlsError() {
  const unsigned long code = ERR_get_error();
  if (code == 0) return "connection closed";
  char text[256];
  ERR_error_string_n(code, text, sizeof(text));
  ERR_clear_error();
  return text;
}

Status LoadAuthorities(SSL_CTX* context, const std::string& ca_path) {
  std::string place = ca_path;
  struct stat info {};
  if (place.empty()) {
    for (const char* candidate : kCaPlaces) {
      if (::stat(candidate, &info) != 0) continue;
      place = candidate;
      break;
    }
  }
  if (place.empty()) {
    return Unavailable("no trusted certificates found on this system; install ca-certificates");
  }
  if (::stat(place.c_str(), &info) != 0) {
    return NotFound(Format("{}: {}", place, std::strerror(errno)));
  }
  const bool directory = S_ISDIR(info.st_mode);
  if (SSL_CTX_load_verify_locations(context, directory ? nullptr : place.c_str(),
                                    directory ? place.c_str() : nullptr) != 1) {
    return Invalid(Format("{}: no usable certificates: {}", place, TlsError()));
  }
  return {};
}

}  // namespace

struct TcpStream::Impl {
  int fd = -1;
  SSL_CTX* context = nullptr;
  SSL* ssl = nullptr;

  ~Impl() {
    if (ssl != nullptr) SSL_free(ssl);
    if (context != nullptr) SSL_CTX_free(context);
    if (fd >= 0) ::close(fd);
  }

  // After an SSL call that returned <= 0: waits for what it wants, or says why it failed.
  Status AfterTls(int result, Clock::time_point deadline, const char* doing) {
    switch (SSL_get_error(ssl, result)) {
      case SSL_ERROR_WANT_READ:
        return WaitFor(fd, Want::kRead, deadline, doing);
      case SSL_ERROR_WANT_WRITE:
        return WaitFor(fd, Want::kWrite, deadline, doing);
      default:
        return Unavailable(Format("TLS failed while {}: {}", doing, TlsError()));
    }
  }
};

TcpStream::TcpStream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TcpStream::~TcpStream() = default;

Result<std::unique_ptr<TcpStream>> TcpStream::Connect(const std::string& host, int port,
                                                      int64_t timeout_ms) {
  const Clock::time_point deadline = After(timeout_ms);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_ADDRCONFIG;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    return Unavailable(Format("cannot resolve {}: {}", host, ::gai_strerror(error)));
  }
  Status last = Unavailable("no address");
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    Result<int> fd = ConnectOne(*address, deadline);
    if (fd.ok()) {
      ::freeaddrinfo(found);
      auto impl = std::make_unique<Impl>();
      impl->fd = *fd;
      return std::unique_ptr<TcpStream>(new TcpStream(std::move(impl)));
    }
    last = fd.status();
  }
  ::freeaddrinfo(found);
  return Status(last.code(), Format("cannot connect to {}:{}: {}", host, port, last.message()));
}

Status TcpStream::StartTls(const std::string& host, const std::string& ca_path,
                           int64_t timeout_ms) {
  Impl& impl = *impl_;
  impl.context = SSL_CTX_new(TLS_client_method());
  if (impl.context == nullptr) return Internal(Format("TLS: {}", TlsError()));
  SSL_CTX_set_min_proto_version(impl.context, TLS1_2_VERSION);
  SSL_CTX_set_verify(impl.context, SSL_VERIFY_PEER, nullptr);
  DI_TRY(LoadAuthorities(impl.context, ca_path));
  impl.ssl = SSL_new(impl.context);
  if (impl.ssl == nullptr) return Internal(Format("TLS: {}", TlsError()));
  in6_addr address{};
  const bool literal = ::inet_pton(AF_INET, host.c_str(), &address) == 1 ||
                       ::inet_pton(AF_INET6, host.c_str(), &address) == 1;
  if (literal) {
    X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(impl.ssl), host.c_str());
  } else {
    SSL_set_tlsext_host_name(impl.ssl, host.c_str());
    SSL_set1_host(impl.ssl, host.c_str());
  }
  SSL_set_fd(impl.ssl, impl.fd);
  const Clock::time_point deadline = After(timeout_ms);
  for (;;) {
    ERR_clear_error();
    const int result = SSL_connect(impl.ssl);
    if (result == 1) return {};
    const long verify = SSL_get_verify_result(impl.ssl);
    if (verify != X509_V_OK) {
      return Unavailable(Format("the certificate of {} is not trusted: {}", host,
                                X509_verify_cert_error_string(verify)));
    }
    DI_TRY(impl.AfterTls(result, deadline, "starting TLS"));
  }
}

Result<size_t> TcpStream::Read(std::span<char> into, int64_t timeout_ms) {
  const Clock::time_point deadline = After(timeout_ms);
  for (;;) {
    if (impl_->ssl != nullptr) {
      ERR_clear_error();
      const int got = SSL_read(impl_->ssl, into.data(), static_cast<int>(into.size()));
      if (got > 0) return static_cast<size_t>(got);
      if (SSL_get_error(impl_->ssl, got) == SSL_ERROR_ZERO_RETURN) return size_t{0};
      DI_TRY(impl_->AfterTls(got, deadline, "reading"));
      continue;
    }
    const ssize_t got = ::recv(impl_->fd, into.data(), into.size(), 0);
    if (got >= 0) return static_cast<size_t>(got);
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      DI_TRY(WaitFor(impl_->fd, Want::kRead, deadline, "reading"));
    } else if (errno != EINTR) {
      return Unavailable(Format("connection broke while reading: {}", std::strerror(errno)));
    }
  }
}

Status TcpStream::Write(std::string_view bytes, int64_t timeout_ms) {
  const Clock::time_point deadline = After(timeout_ms);
  while (!bytes.empty()) {
    if (impl_->ssl != nullptr) {
      ERR_clear_error();
      const int size = static_cast<int>(std::min<size_t>(bytes.size(), 1 << 20));
      const int sent = SSL_write(impl_->ssl, bytes.data(), size);
      if (sent > 0) {
        bytes.remove_prefix(static_cast<size_t>(sent));
      } else {
        DI_TRY(impl_->AfterTls(sent, deadline, "writing"));
      }
      continue;
    }
    const ssize_t sent = ::send(impl_->fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      DI_TRY(WaitFor(impl_->fd, Want::kWrite, deadline, "writing"));
    } else if (errno != EINTR) {
      return Unavailable(Format("connection broke while writing: {}", std::strerror(errno)));
    }
  }
  return {};
}

bool TcpStream::reusable() const {
  pollfd waiting{impl_->fd, POLLIN, 0};
  return ::poll(&waiting, 1, 0) == 0;
}

}  // namespace deepinfer
