#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "data/transport/deadline.h"
#include "data/transport/file_descriptor.h"
#include "data/transport/hello.h"

namespace percheron {

/// Where a node listens: a host name or an IP address, and a TCP port.
struct NodeAddress {
  std::string host;
  uint16_t port = 0;

  /// Of "host:port" or "[IPv6]:port". kInvalidArgument otherwise.
  static Result<NodeAddress> parse(std::string_view text);
  std::string text() const;

  auto operator<=>(const NodeAddress&) const = default;
};

/// A TCP connection to `address`, non-blocking, without delay for small messages, and probed so
/// that a peer whose machine is gone is noticed within about 30 s. kUnavailable, naming the address
/// and why. A name is looked up by the system's resolver, whose own time limits apply.
Result<FileDescriptor> connect_tcp(const NodeAddress& address, Deadline deadline);

/// connect_tcp(), TLS where `credentials` has it, and the hello. The peer's certificate must be for
/// `expected_name`; where that is empty, for address.host. Every error names the address.
Result<Connection> connect_node(const NodeAddress& address, const std::string& expected_name,
                                const Credentials& credentials, Purpose purpose,
                                RandomBytes& random, Deadline deadline);

}  // namespace percheron
