#pragma once

#include <memory>
#include <string>

#include "data/transport/byte_stream.h"
#include "data/transport/openssl_pointers.h"

namespace percheron {

/// What a handshake knows, for messages.
struct TlsHandshake {
  FileDescriptor socket;
  std::string peer;
  std::string own_certificate;  // files
  std::string ca;
};

/// Runs the handshake that `ssl` is set up for, on the socket that it uses already.
Result<std::unique_ptr<ByteStream>> finish_handshake(SslPtr ssl, TlsHandshake handshake,
                                                     Deadline deadline);

/// For SSL_set_verify(): remembers the first reason why the peer's certificate is refused.
int remember_verify_error(int ok, X509_STORE_CTX* context);

}  // namespace percheron
