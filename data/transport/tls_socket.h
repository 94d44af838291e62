#pragma once

#include "data/transport/openssl_pointers.h"

namespace percheron {

/// A BIO over the socket `fd`, which it borrows. OpenSSL's own would raise SIGPIPE where the peer
/// has gone.
BioPtr make_socket_bio(int fd);

}  // namespace percheron
