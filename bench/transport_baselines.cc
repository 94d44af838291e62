#include "bench/transport_baselines.h"

#include <fcntl.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <vector>

#include "data/transport/connect.h"
#include "data/transport/socket_wait.h"
#include "data/transport/tcp_socket.h"

namespace percheron {
namespace {

constexpr size_t kPieceBytes = size_t{256} << 10;

Status set_blocking(const FileDescriptor& socket) {
  const int flags = ::fcntl(socket.get(), F_GETFL);
  if (::fcntl(socket.get(), F_SETFL, flags & ~O_NONBLOCK) == 0) return ok_status();
  return os_error("make a socket wait", errno);
}

struct TcpPair {
  FileDescriptor sender, receiver;
};

Result<TcpPair> connected_pair() {
  PERCHERON_ASSIGN_OR_RETURN(const FileDescriptor listener, listen_tcp({"127.0.0.1", 0}, 1));
  PERCHERON_ASSIGN_OR_RETURN(const uint16_t port, local_port(listener));
  TcpPair pair;
  PERCHERON_ASSIGN_OR_RETURN(pair.receiver, connect_tcp({"127.0.0.1", port}, Deadline::never()));
  PERCHERON_RETURN_IF_ERROR(
      wait_ready(listener.get(), Readiness::kRead, Deadline::never()).status());
  PERCHERON_ASSIGN_OR_RETURN(AcceptedSocket accepted, accept_tcp(listener));
  pair.sender = std::move(accepted.socket);
  PERCHERON_RETURN_IF_ERROR(set_blocking(pair.sender));
  PERCHERON_RETURN_IF_ERROR(set_blocking(pair.receiver));
  return pair;
}

bool send_all(int socket, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return true;
}

bool receive_all(int socket, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::recv(socket, bytes.data(), bytes.size(), 0);
    if (count <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return true;
}

// A connection whose sender sends `part` whenever it is asked to by a byte.
class TcpStream {
 public:
  TcpStream(TcpPair pair, std::span<const std::byte> part)
      : pair_(std::move(pair)), part_(part), thread_([this] {
          char asked;
          while (::recv(pair_.sender.get(), &asked, 1, 0) == 1) {
            if (!send_all(pair_.sender.get(), part_)) return;
          }
        }) {}
  ~TcpStream() {
    ::shutdown(pair_.receiver.get(), SHUT_RDWR);
    thread_.join();
  }

  bool pull(std::span<std::byte> into) const {
    const std::byte ask{1};
    return send_all(pair_.receiver.get(), {&ask, 1}) && receive_all(pair_.receiver.get(), into);
  }

 private:
  const TcpPair pair_;
  const std::span<const std::byte> part_;
  std::thread thread_;
};

class TcpBaseline final : public Baseline {
 public:
  explicit TcpBaseline(std::vector<std::unique_ptr<TcpStream>> streams, size_t part_bytes)
      : streams_(std::move(streams)), part_bytes_(part_bytes) {}

  Status transfer(std::span<std::byte> into) override {
    std::vector<std::thread> threads;
    std::vector<char> done(streams_.size());
    const auto pull = [&](size_t i) {
      const size_t begin = i * part_bytes_;
      const size_t bytes = i + 1 == streams_.size() ? into.size() - begin : part_bytes_;
      done[i] = streams_[i]->pull(into.subspan(begin, bytes)) ? 1 : 0;
    };
    for (size_t i = 1; i < streams_.size(); ++i) threads.emplace_back(pull, i);
    pull(0);
    for (std::thread& thread : threads) thread.join();
    for (const char ok : done) {
      if (ok == 0) return unavailable("a plain connection broke");
    }
    return ok_status();
  }

 private:
  const std::vector<std::unique_ptr<TcpStream>> streams_;
  const size_t part_bytes_;
};

struct FreeSsl {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};

class TlsBaseline final : public Baseline {
 public:
  TlsBaseline(TcpPair pair, std::span<const std::byte> source, SSL_CTX* context)
      : pair_(std::move(pair)),
        source_(source),
        sender_(SSL_new(context)),
        receiver_(SSL_new(context)) {
    SSL_set_fd(sender_.get(), pair_.sender.get());
    SSL_set_fd(receiver_.get(), pair_.receiver.get());
    thread_ = std::thread([this] { send(); });
    connected_ = SSL_connect(receiver_.get()) == 1;
  }
  ~TlsBaseline() override {
    ::shutdown(pair_.receiver.get(), SHUT_RDWR);
    thread_.join();
  }

  Status transfer(std::span<std::byte> into) override {
    size_t count = 0;
    if (!connected_ || SSL_write_ex(receiver_.get(), "x", 1, &count) != 1) {
      return unavailable("a bare TLS connection broke");
    }
    while (!into.empty()) {
      if (SSL_read_ex(receiver_.get(), into.data(), into.size(), &count) != 1) {
        return unavailable("a bare TLS connection broke");
      }
      into = into.subspan(count);
    }
    return ok_status();
  }

 private:
  void send() {
    if (SSL_accept(sender_.get()) != 1) return;
    char asked;
    size_t count = 0;
    while (SSL_read_ex(sender_.get(), &asked, 1, &count) == 1) {
      for (std::span<const std::byte> left = source_; !left.empty();) {
        const size_t piece = std::min(kPieceBytes, left.size());
        if (SSL_write_ex(sender_.get(), left.data(), piece, &count) != 1) return;
        left = left.subspan(count);
      }
    }
  }

  const TcpPair pair_;
  const std::span<const std::byte> source_;
  const std::unique_ptr<SSL, FreeSsl> sender_, receiver_;
  bool connected_ = false;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<Baseline>> tcp_baseline(std::span<const std::byte> source, int streams) {
  const size_t part_bytes = source.size() / static_cast<size_t>(streams);
  std::vector<std::unique_ptr<TcpStream>> pairs;
  for (int i = 0; i < streams; ++i) {
    const size_t begin = static_cast<size_t>(i) * part_bytes;
    PERCHERON_ASSIGN_OR_RETURN(TcpPair pair, connected_pair());
    const size_t bytes = i + 1 == streams ? source.size() - begin : part_bytes;
    pairs.push_back(std::make_unique<TcpStream>(std::move(pair), source.subspan(begin, bytes)));
  }
  return std::unique_ptr<Baseline>(std::make_unique<TcpBaseline>(std::move(pairs), part_bytes));
}

Result<std::unique_ptr<Baseline>> tls_baseline(std::span<const std::byte> source,
                                               const std::string& certificate,
                                               const std::string& key) {
  const std::unique_ptr<SSL_CTX, FreeSsl> context(SSL_CTX_new(TLS_method()));
  const bool set_up =
      SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION) == 1 &&
      SSL_CTX_set_ciphersuites(context.get(), "TLS_AES_128_GCM_SHA256") == 1 &&
      SSL_CTX_use_certificate_file(context.get(), certificate.c_str(), SSL_FILETYPE_PEM) == 1 &&
      SSL_CTX_use_PrivateKey_file(context.get(), key.c_str(), SSL_FILETYPE_PEM) == 1;
  if (!set_up) return internal_error("OpenSSL refuses to set up a bare TLS connection");
  PERCHERON_ASSIGN_OR_RETURN(TcpPair pair, connected_pair());
  return std::unique_ptr<Baseline>(
      std::make_unique<TlsBaseline>(std::move(pair), source, context.get()));
}

}  // namespace percheron
