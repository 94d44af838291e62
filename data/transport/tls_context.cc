#include <arpa/inet.h>
#include <openssl/err.h>

#include <array>
#include <cmath>

#include "base/check.h"
#include "data/transport/pem.h"
#include "data/transport/socket_wait.h"
#include "data/transport/tls.h"
#include "data/transport/tls_socket.h"
#include "data/transport/tls_stream.h"

namespace percheron {
namespace {

// Speed first: all three are secure.
constexpr const char* kCiphers =
    "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";
constexpr size_t kReadBufferBytes = size_t{64} << 10;

bool is_address(const std::string& name) {
  std::array<unsigned char, sizeof(in6_addr)> address;
  return inet_pton(AF_INET, name.c_str(), address.data()) == 1 ||
         inet_pton(AF_INET6, name.c_str(), address.data()) == 1;
}

// What the three files hold.
struct Loaded {
  std::vector<X509Ptr> authorities;
  std::vector<X509Ptr> chain;  // our certificate first
  PkeyPtr key;
};

X509StorePtr make_store(const std::vector<X509Ptr>& authorities) {
  X509StorePtr store(X509_STORE_new());
  PERCHERON_CHECK(store != nullptr, "OpenSSL has no memory");
  for (const X509Ptr& authority : authorities) X509_STORE_add_cert(store.get(), authority.get());
  return store;
}

// Our own certificate, by the rules of the peers that will see it.
Status verify_own(const Loaded& loaded, const TlsFiles& paths, const Clock& clock) {
  const X509StorePtr store = make_store(loaded.authorities);
  const X509StoreCtxPtr context(X509_STORE_CTX_new());
  X509_STORE_CTX_init(context.get(), store.get(), loaded.chain.front().get(), nullptr);
  X509_VERIFY_PARAM_set_time(X509_STORE_CTX_get0_param(context.get()),
                             static_cast<time_t>(std::floor(clock.unix_seconds())));
  if (X509_verify_cert(context.get()) == 1) return ok_status();
  const X509* at_fault = X509_STORE_CTX_get_current_cert(context.get());
  const std::string& path =
      X509_STORE_CTX_get_error_depth(context.get()) > 0 ? paths.ca : paths.certificate;
  const Status status = failed_precondition(verify_error_text(
      X509_STORE_CTX_get_error(context.get()), at_fault, "the certificate " + path, paths.ca));
  ERR_clear_error();
  return status;
}

Result<Loaded> load_files(FileSystem& files, const TlsFiles& paths) {
  Loaded loaded;
  PERCHERON_ASSIGN_OR_RETURN(loaded.authorities, read_certificates(files, paths.ca));
  PERCHERON_ASSIGN_OR_RETURN(loaded.chain, read_certificates(files, paths.certificate));
  PERCHERON_ASSIGN_OR_RETURN(loaded.key, read_private_key(files, paths.key));
  if (X509_check_private_key(loaded.chain.front().get(), loaded.key.get()) != 1) {
    ERR_clear_error();
    return failed_precondition("the key " + paths.key + " does not belong to the certificate " +
                               paths.certificate);
  }
  return loaded;
}

Result<SslCtxPtr> make_context(const Loaded& loaded) {
  SslCtxPtr context(SSL_CTX_new(TLS_method()));
  if (context == nullptr) return internal_error("OpenSSL offers no TLS: " + openssl_error());
  SSL_CTX* ctx = context.get();
  const bool set_up = SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION) == 1 &&
                      SSL_CTX_set_ciphersuites(ctx, kCiphers) == 1 &&
                      SSL_CTX_use_certificate(ctx, loaded.chain.front().get()) == 1 &&
                      SSL_CTX_use_PrivateKey(ctx, loaded.key.get()) == 1 &&
                      SSL_CTX_set_num_tickets(ctx, 0) == 1;
  if (!set_up) return internal_error("OpenSSL refuses to set up TLS: " + openssl_error());
  for (size_t i = 1; i < loaded.chain.size(); ++i) {
    if (SSL_CTX_add1_chain_cert(ctx, loaded.chain[i].get()) != 1) {
      return internal_error("OpenSSL refuses a chain of certificates: " + openssl_error());
    }
  }
  SSL_CTX_set1_cert_store(ctx, make_store(loaded.authorities).get());
  SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, remember_verify_error);
  SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  // A stream that just ends is one that ended: messages carry their length, so nothing can be cut
  // off unnoticed.
  SSL_CTX_set_options(ctx, SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_read_ahead(ctx, 1);
  SSL_CTX_set_default_read_buffer_len(ctx, kReadBufferBytes);
  return context;
}

class OpensslContext final : public TlsContext {
 public:
  OpensslContext(TlsFiles paths, SslCtxPtr context, std::vector<std::string> names,
                 const Clock& clock)
      : paths_(std::move(paths)),
        context_(std::move(context)),
        names_(std::move(names)),
        clock_(clock) {}

  const std::vector<std::string>& names() const override { return names_; }

  Result<std::unique_ptr<ByteStream>> connect(FileDescriptor socket, std::string peer,
                                              const std::string& expected_name,
                                              Deadline deadline) const override {
    PERCHERON_ASSIGN_OR_RETURN(SslPtr ssl, make_ssl(socket));
    X509_VERIFY_PARAM* rules = SSL_get0_param(ssl.get());
    X509_VERIFY_PARAM_set_hostflags(
        rules, X509_CHECK_FLAG_NO_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
    const bool known = is_address(expected_name)
                           ? X509_VERIFY_PARAM_set1_ip_asc(rules, expected_name.c_str()) == 1
                           : X509_VERIFY_PARAM_set1_host(rules, expected_name.c_str(), 0) == 1;
    if (expected_name.empty() || !known) {
      return invalid_argument("'" + expected_name + "' is no name that a certificate can have");
    }
    SSL_set_connect_state(ssl.get());
    return finish_handshake(std::move(ssl), handshake(std::move(socket), std::move(peer)),
                            deadline);
  }

  Result<std::unique_ptr<ByteStream>> accept(FileDescriptor socket, std::string peer,
                                             Deadline deadline) const override {
    PERCHERON_ASSIGN_OR_RETURN(SslPtr ssl, make_ssl(socket));
    SSL_set_accept_state(ssl.get());
    return finish_handshake(std::move(ssl), handshake(std::move(socket), std::move(peer)),
                            deadline);
  }

 private:
  Result<SslPtr> make_ssl(const FileDescriptor& socket) const {
    PERCHERON_RETURN_IF_ERROR(set_nonblocking(socket.get()));
    SslPtr ssl(SSL_new(context_.get()));
    if (ssl == nullptr) return internal_error("OpenSSL makes no connection: " + openssl_error());
    X509_VERIFY_PARAM_set_time(SSL_get0_param(ssl.get()),
                               static_cast<time_t>(std::floor(clock_.unix_seconds())));
    BIO* bio = make_socket_bio(socket.get()).release();
    SSL_set_bio(ssl.get(), bio, bio);  // owns it
    return ssl;
  }

  TlsHandshake handshake(FileDescriptor socket, std::string peer) const {
    return {std::move(socket), std::move(peer), paths_.certificate, paths_.ca};
  }

  const TlsFiles paths_;
  const SslCtxPtr context_;
  const std::vector<std::string> names_;
  const Clock& clock_;
};

}  // namespace

Result<std::shared_ptr<const TlsContext>> TlsContext::load(FileSystem& files, const TlsFiles& paths,
                                                           const Clock& clock) {
  PERCHERON_ASSIGN_OR_RETURN(const Loaded loaded, load_files(files, paths));
  PERCHERON_RETURN_IF_ERROR(verify_own(loaded, paths, clock));
  std::vector<std::string> names = certificate_names(loaded.chain.front().get());
  if (names.empty()) {
    return failed_precondition("the certificate " + paths.certificate +
                               " names no node (it has no subject alternative name); issue one "
                               "with percheron certs issue");
  }
  PERCHERON_ASSIGN_OR_RETURN(SslCtxPtr context, make_context(loaded));
  return std::shared_ptr<const TlsContext>(
      std::make_shared<OpensslContext>(paths, std::move(context), std::move(names), clock));
}

}  // namespace percheron
