#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file_system.h"
#include "base/status.h"
#include "data/transport/byte_stream.h"
#include "data/transport/deadline.h"

namespace percheron {

/// Files in PEM: the private CA that all nodes trust, this node's certificate and its key.
struct TlsFiles {
  std::string ca;           // cluster.tls.ca
  std::string certificate;  // cluster.tls.certificate
  std::string key;          // cluster.tls.key
};

/// Mutual TLS 1.3: both ends show a certificate of the same CA. Immutable, thread-safe, shared by
/// all connections of a process.
class TlsContext {
 public:
  /// Reads and checks the three files: each error names the file and what is wrong with it (no PEM,
  /// expired, not issued by the CA, a key that belongs to another certificate).
  static Result<std::shared_ptr<const TlsContext>> load(FileSystem& files, const TlsFiles& paths,
                                                        const Clock& clock);
  virtual ~TlsContext() = default;

  /// Names and addresses that this node's certificate is for; the first is the node's name.
  virtual const std::vector<std::string>& names() const = 0;

  /// The handshake of who has connected `socket`. The peer's certificate must be of the CA and for
  /// `expected_name`, a node's name or an IP address. kUnavailable when the peer breaks off or the
  /// deadline passes, kFailedPrecondition when a certificate is refused, here or there, or the peer
  /// does not speak TLS. `peer` is for messages.
  virtual Result<std::unique_ptr<ByteStream>> connect(FileDescriptor socket, std::string peer,
                                                      const std::string& expected_name,
                                                      Deadline deadline) const = 0;
  /// The handshake of who has accepted `socket`; errors as connect().
  virtual Result<std::unique_ptr<ByteStream>> accept(FileDescriptor socket, std::string peer,
                                                     Deadline deadline) const = 0;
};

}  // namespace percheron
