#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "data/transport/connect.h"
#include "data/transport/file_descriptor.h"

namespace percheron {

/// What every connection gets: small messages go at once, and a peer whose machine is gone is
/// noticed within about 30 s.
Status set_up_tcp(const FileDescriptor& socket);

/// A socket that listens on `address` (port 0: one that is free), non-blocking. Errors name the
/// address.
Result<FileDescriptor> listen_tcp(const NodeAddress& address, int backlog);
/// The port that a socket is bound to.
Result<uint16_t> local_port(const FileDescriptor& socket);

/// A connection that came in; its host in numbers.
struct AcceptedSocket {
  FileDescriptor socket;
  NodeAddress peer;
};
/// The next connection that waits at `listener`; a socket that is not valid when there is none.
Result<AcceptedSocket> accept_tcp(const FileDescriptor& listener);

}  // namespace percheron
