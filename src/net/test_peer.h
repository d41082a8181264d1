// Peers for tests of the HTTP client: a scripted plain server and a TLS server with a certificate
// made on the spot. Each owns one thread that serves until destruction.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace deepinfer {

// A listening socket on a free port of the loopback address.
class Listener {
 public:
  Listener() {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address));
    ::listen(fd_, 16);
    socklen_t size = sizeof(address);
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
  }
  ~Listener() { ::close(fd_); }
  int port() const { return port_; }
  int Accept() const { return ::accept(fd_, nullptr, nullptr); }
  void Stop() { ::shutdown(fd_, SHUT_RDWR); }

 private:
  int fd_ = -1;
  int port_ = 0;
};

// Answers connection i with answers[i] after the end of the request header, then closes.
class ScriptedPeer {
 public:
  explicit ScriptedPeer(std::vector<std::string> answers) : answers_(std::move(answers)) {
    thread_ = std::thread([this] { Run(); });
  }
  ~ScriptedPeer() {
    listener_.Stop();
    thread_.join();
  }
  int port() const { return listener_.port(); }
  // The header that connection i sent; read after its answer arrived.
  const std::string& request(size_t i) const { return requests_[i]; }

 private:
  void Run() {
    requests_.resize(answers_.size());
    for (size_t i = 0; i < answers_.size(); ++i) {
      const int fd = listener_.Accept();
      if (fd < 0) return;
      char byte = 0;
      while (!requests_[i].ends_with("\r\n\r\n") && ::recv(fd, &byte, 1, 0) == 1) {
        requests_[i].push_back(byte);
      }
      ::send(fd, answers_[i].data(), answers_[i].size(), MSG_NOSIGNAL);
      ::shutdown(fd, SHUT_WR);
      while (::recv(fd, &byte, 1, 0) > 0) {
      }
      ::close(fd);
    }
  }

  Listener listener_;
  std::vector<std::string> answers_;
  std::vector<std::string> requests_;
  std::thread thread_;
};

// Serves "secret" over TLS with a self-signed certificate for `name`, written to `pem_path`.
class TlsPeer {
 public:
  TlsPeer(const std::string& name, const std::string& pem_path) {
    key_ = EVP_EC_gen("P-256");
    cert_ = X509_new();
    X509_set_version(cert_, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(cert_), 1);
    X509_gmtime_adj(X509_getm_notBefore(cert_), -3600);
    X509_gmtime_adj(X509_getm_notAfter(cert_), 86400);
    X509_set_pubkey(cert_, key_);
    X509_NAME* subject = X509_get_subject_name(cert_);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
    X509_set_issuer_name(cert_, subject);
    X509_EXTENSION* names =
        X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, ("DNS:" + name).c_str());
    X509_add_ext(cert_, names, -1);
    X509_EXTENSION_free(names);
    X509_sign(cert_, key_, EVP_sha256());
    std::FILE* file = std::fopen(pem_path.c_str(), "w");
    PEM_write_X509(file, cert_);
    std::fclose(file);
    thread_ = std::thread([this] { Run(); });
  }
  ~TlsPeer() {
    listener_.Stop();
    thread_.join();
    X509_free(cert_);
    EVP_PKEY_free(key_);
  }
  int port() const { return listener_.port(); }

 private:
  void Run() {
    SSL_CTX* context = SSL_CTX_new(TLS_server_method());
    SSL_CTX_use_certificate(context, cert_);
    SSL_CTX_use_PrivateKey(context, key_);
    for (;;) {
      const int fd = listener_.Accept();
      if (fd < 0) break;
      SSL* ssl = SSL_new(context);
      SSL_set_fd(ssl, fd);
      if (SSL_accept(ssl) == 1) {
        char request[4096];
        SSL_read(ssl, request, sizeof(request));
        const std::string answer = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret";
        SSL_write(ssl, answer.data(), static_cast<int>(answer.size()));
        SSL_shutdown(ssl);
      }
      SSL_free(ssl);
      ::close(fd);
    }
    SSL_CTX_free(context);
  }

  Listener listener_;
  EVP_PKEY* key_ = nullptr;
  X509* cert_ = nullptr;
  std::thread thread_;
};

}  // namespace deepinfer
