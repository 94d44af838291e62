#include "data/transport/tls_stream.h"

#include <openssl/err.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>

#include "base/check.h"
#include "data/transport/pem.h"
#include "data/transport/socket_wait.h"

namespace percheron {
namespace {

constexpr int kAlertOffset = SSL_AD_REASON_OFFSET;  // reasons above it are the peer's alerts

// Why the peer's certificate was refused.
struct VerifyError {
  int code = X509_V_OK;
  std::string text;
};

// What a call of OpenSSL came to.
struct Outcome {
  int ssl_error = SSL_ERROR_NONE;
  int system_error = 0;
  unsigned long reason = 0;
};

// After a call on `ssl` that returned `result`; in the same thread.
Outcome outcome_of(SSL* ssl, int result) {
  Outcome outcome;
  outcome.system_error = errno;
  outcome.ssl_error = SSL_get_error(ssl, result);
  outcome.reason = ERR_peek_last_error();
  ERR_clear_error();
  return outcome;
}

// The peer's alert that ends a connection, in words.
Status alert_status(int alert, const TlsHandshake& handshake) {
  const std::string& peer = handshake.peer;
  const std::string ours = "our certificate " + handshake.own_certificate;
  switch (alert) {
    case SSL_AD_UNKNOWN_CA:
    case SSL_AD_BAD_CERTIFICATE:
    case SSL_AD_CERTIFICATE_UNKNOWN:
    case SSL_AD_DECRYPT_ERROR:
      return failed_precondition(peer + " refuses " + ours +
                                 ": it was not issued by the authority that the peer trusts");
    case SSL_AD_CERTIFICATE_EXPIRED:
      return failed_precondition(peer + " refuses " + ours +
                                 ": it has expired; issue a new one with percheron certs issue");
    case TLS13_AD_CERTIFICATE_REQUIRED:
      return failed_precondition(peer + " wants a certificate and got none");
    case SSL_AD_PROTOCOL_VERSION: return failed_precondition(peer + " does not speak TLS 1.3");
    default:
      return failed_precondition(
          peer + " refuses the TLS connection: " + SSL_alert_desc_string_long(alert));
  }
}

Status failure(const Outcome& outcome, const TlsHandshake& handshake) {
  if (outcome.reason == 0) {
    if (outcome.system_error == 0 || outcome.ssl_error != SSL_ERROR_SYSCALL)
      return unavailable(handshake.peer + " closed the connection");
    return os_error("talk to " + handshake.peer, outcome.system_error);
  }
  const int reason = ERR_GET_REASON(outcome.reason);
  if (reason > kAlertOffset) return alert_status(reason - kAlertOffset, handshake);
  switch (reason) {
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_HTTP_REQUEST:
    case SSL_R_HTTPS_PROXY_REQUEST:
    case SSL_R_PACKET_LENGTH_TOO_LONG:
    case SSL_R_UNEXPECTED_MESSAGE:
    case SSL_R_BAD_RECORD_TYPE:
      return failed_precondition(handshake.peer +
                                 " does not speak TLS; was it started with --insecure?");
    case SSL_R_UNSUPPORTED_PROTOCOL:
    case SSL_R_NO_PROTOCOLS_AVAILABLE:
      return failed_precondition(handshake.peer + " does not speak TLS 1.3");
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
      return failed_precondition(handshake.peer + " shows no certificate");
    default: {
      const char* text = ERR_reason_error_string(outcome.reason);
      return unavailable("the TLS connection to " + handshake.peer +
                         " broke: " + (text == nullptr ? "unknown error" : text));
    }
  }
}

class TlsStream final : public ByteStream {
 public:
  TlsStream(SslPtr ssl, TlsHandshake handshake, TlsPeer tls_peer)
      : handshake_(std::move(handshake)), tls_peer_(std::move(tls_peer)), ssl_(std::move(ssl)) {}

  Result<std::optional<size_t>> read_some(std::span<std::byte> into, Deadline deadline) override {
    return read(into, 1, deadline);
  }

  // OpenSSL may hold a part of a record that the socket will not bring again.
  Result<std::optional<size_t>> read_batch(std::span<std::byte> into, Deadline deadline) override {
    return read(into, into.size() > 2 * kHeldMax ? into.size() - kHeldMax : 1, deadline);
  }

  Status write(std::span<const std::byte> bytes, Deadline deadline) override {
    while (!bytes.empty()) {
      size_t count = 0;
      const Outcome outcome =
          call([&](SSL* ssl) { return SSL_write_ex(ssl, bytes.data(), bytes.size(), &count); });
      if (closed_) return closed_here();
      if (outcome.ssl_error == SSL_ERROR_NONE) {
        bytes = bytes.subspan(count);
        continue;
      }
      PERCHERON_ASSIGN_OR_RETURN(const bool ready, wait(outcome, deadline));
      if (!ready) return unavailable(handshake_.peer + " took no bytes in time");
    }
    return ok_status();
  }

  // Without TLS's own goodbye: what travels here says itself where it ends.
  void close() override {
    if (!closed_.exchange(true)) ::shutdown(handshake_.socket.get(), SHUT_RDWR);
  }

  void finish() override {
    if (closed_) return;
    call([](SSL* ssl) { return SSL_shutdown(ssl); });
    finish_socket(handshake_.socket.get());
  }

  std::string peer() const override { return handshake_.peer; }
  const TlsPeer* tls_peer() const override { return &tls_peer_; }

 private:
  static constexpr size_t kHeldMax = size_t{32} << 10;  // a record of TLS is half of that

  // Waits for `least` bytes where none are there.
  Result<std::optional<size_t>> read(std::span<std::byte> into, size_t least, Deadline deadline) {
    PERCHERON_CHECK(!into.empty(), "a read of no bytes");
    for (bool late = false;;) {
      size_t count = 0;
      const Outcome outcome =
          call([&](SSL* ssl) { return SSL_read_ex(ssl, into.data(), into.size(), &count); });
      if (closed_) return closed_here();
      if (outcome.ssl_error == SSL_ERROR_NONE) return std::optional<size_t>(count);
      if (outcome.ssl_error == SSL_ERROR_ZERO_RETURN) return std::optional<size_t>(0);
      if (late) return std::optional<size_t>();
      PERCHERON_RETURN_IF_ERROR(low_water_.set(handshake_.socket.get(), least));
      PERCHERON_ASSIGN_OR_RETURN(const bool ready, wait(outcome, deadline));
      // Fewer than were waited for may be there.
      late = !ready;
    }
  }

  // A reader and a writer take turns at `ssl_`, which is not thread-safe; neither waits inside.
  template <class Call>
  Outcome call(Call function) {
    const std::lock_guard lock(mutex_);
    ERR_clear_error();
    errno = 0;
    const int result = function(ssl_.get());
    return result > 0 ? Outcome() : outcome_of(ssl_.get(), result);
  }

  // Until `outcome`, which is no success, is worth another try; false at the deadline.
  Result<bool> wait(const Outcome& outcome, Deadline deadline) const {
    if (outcome.ssl_error == SSL_ERROR_WANT_READ) {
      return wait_ready(handshake_.socket.get(), Readiness::kRead, deadline);
    }
    if (outcome.ssl_error == SSL_ERROR_WANT_WRITE) {
      return wait_ready(handshake_.socket.get(), Readiness::kWrite, deadline);
    }
    return failure(outcome, handshake_);
  }

  Status closed_here() const {
    return cancelled("the connection to " + handshake_.peer + " was closed here");
  }

  const TlsHandshake handshake_;
  const TlsPeer tls_peer_;
  LowWaterMark low_water_;  // the reader's
  std::atomic<bool> closed_{false};
  std::mutex mutex_;
  const SslPtr ssl_;  // after the socket, which it uses
};

TlsPeer tls_peer_of(SSL* ssl) {
  TlsPeer peer;
  peer.names = certificate_names(SSL_get0_peer_certificate(ssl));
  static constexpr std::string_view kLabel = "EXPORTER-Channel-Binding";
  std::array<unsigned char, 32> binding;
  const int done = SSL_export_keying_material(ssl, binding.data(), binding.size(), kLabel.data(),
                                              kLabel.size(), nullptr, 0, 0);
  PERCHERON_CHECK(done == 1, "OpenSSL exports no channel binding");
  peer.channel_binding.assign(binding.begin(), binding.end());
  return peer;
}

// Until the handshake is done.
Status run_handshake(SSL* ssl, const TlsHandshake& handshake, const VerifyError& verify_error,
                     Deadline deadline) {
  for (;;) {
    ERR_clear_error();
    errno = 0;
    const int result = SSL_do_handshake(ssl);
    if (result == 1) return ok_status();
    const Outcome outcome = outcome_of(ssl, result);
    if (outcome.ssl_error != SSL_ERROR_WANT_READ && outcome.ssl_error != SSL_ERROR_WANT_WRITE) {
      if (verify_error.code != X509_V_OK) return failed_precondition(verify_error.text);
      return failure(outcome, handshake);
    }
    const Readiness readiness =
        outcome.ssl_error == SSL_ERROR_WANT_READ ? Readiness::kRead : Readiness::kWrite;
    PERCHERON_ASSIGN_OR_RETURN(const bool ready,
                               wait_ready(handshake.socket.get(), readiness, deadline));
    if (!ready) return unavailable(handshake.peer + " did not finish the TLS handshake in time");
  }
}

// What remember_verify_error() fills.
struct VerifyContext {
  const TlsHandshake* handshake = nullptr;
  VerifyError error;
};

}  // namespace

int remember_verify_error(int ok, X509_STORE_CTX* context) {
  if (ok == 1) return 1;
  auto* ssl =
      static_cast<SSL*>(X509_STORE_CTX_get_ex_data(context, SSL_get_ex_data_X509_STORE_CTX_idx()));
  auto* verify = static_cast<VerifyContext*>(SSL_get_app_data(ssl));
  if (verify == nullptr || verify->error.code != X509_V_OK) return 0;
  const int code = X509_STORE_CTX_get_error(context);
  const X509* certificate = X509_STORE_CTX_get_current_cert(context);
  verify->error.code = code;
  const std::string& peer = verify->handshake->peer;
  if (code == X509_V_ERR_HOSTNAME_MISMATCH || code == X509_V_ERR_IP_ADDRESS_MISMATCH) {
    std::string names;
    for (const std::string& name : certificate_names(certificate)) {
      names += (names.empty() ? "" : ", ") + name;
    }
    const char* host = X509_VERIFY_PARAM_get0_host(SSL_get0_param(ssl), 0);
    char* address = X509_VERIFY_PARAM_get1_ip_asc(SSL_get0_param(ssl));
    verify->error.text = "the certificate of " + peer + " is for " + names + " and not for " +
                         (host != nullptr      ? host
                          : address != nullptr ? address
                                               : "it") +
                         "; issue it with that name or --address";
    OPENSSL_free(address);
    return 0;
  }
  verify->error.text =
      verify_error_text(code, certificate, "the certificate of " + peer, verify->handshake->ca);
  return 0;
}

Result<std::unique_ptr<ByteStream>> finish_handshake(SslPtr ssl, TlsHandshake handshake,
                                                     Deadline deadline) {
  VerifyContext verify{&handshake, {}};
  SSL_set_app_data(ssl.get(), &verify);
  const Status status = run_handshake(ssl.get(), handshake, verify.error, deadline);
  SSL_set_app_data(ssl.get(), nullptr);
  if (!status.ok()) {
    // The alert that tells the peer why shall arrive.
    if (!deadline.passed()) finish_socket(handshake.socket.get());
    return status;
  }
  TlsPeer peer = tls_peer_of(ssl.get());
  return std::unique_ptr<ByteStream>(
      std::make_unique<TlsStream>(std::move(ssl), std::move(handshake), std::move(peer)));
}

}  // namespace percheron
