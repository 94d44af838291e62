#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "data/transport/deadline.h"
#include "data/transport/file_descriptor.h"

namespace percheron {

/// What TLS says of the other end.
struct TlsPeer {
  std::vector<std::string> names;  // DNS names and IP addresses in its certificate
  std::string channel_binding;     // the same at both ends, other for every connection (RFC 9266)

  bool has_name(std::string_view name) const;
};

/// A connection that carries bytes both ways, in order. One thread may read while another writes;
/// close() and peer() may be called from any.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  /// Takes what is there, at most into.size() > 0 bytes, waiting for the first until `deadline`:
  /// nothing when none came till then, 0 when the peer ended the stream. kUnavailable when the
  /// connection broke, kCancelled after close().
  virtual Result<std::optional<size_t>> read_some(std::span<std::byte> into, Deadline deadline) = 0;
  /// As read_some() where at least into.size() bytes are sure to come: may wait until a good part
  /// of them are there, so that a reader of many bytes wakes up less often. What is there at the
  /// deadline or at the end of the stream is taken, however little.
  virtual Result<std::optional<size_t>> read_batch(std::span<std::byte> into, Deadline deadline) {
    return read_some(into, deadline);
  }
  /// Writes all of `bytes`. After an error, also that the deadline passed (kUnavailable), nobody
  /// knows what arrived: close the stream.
  virtual Status write(std::span<const std::byte> bytes, Deadline deadline) = 0;
  /// As write() of one part behind the other, where the socket can in one call: a few bytes of
  /// their own would be a packet, and wake up the reader, for themselves.
  virtual Status write_parts(std::initializer_list<std::span<const std::byte>> parts,
                             Deadline deadline);
  /// Ends reads and writes that wait in any thread, and all later ones.
  virtual void close() = 0;
  /// As the last call of who refuses a peer: lets what was written arrive before the end, which
  /// takes a moment at most.
  virtual void finish() = 0;
  /// For messages, as "10.0.0.3:7001".
  virtual std::string peer() const = 0;
  /// Null where the connection is plain text.
  virtual const TlsPeer* tls_peer() const { return nullptr; }
};

/// Fills `into`. kUnavailable when the deadline passes or the peer ends the stream before.
Status read_exactly(ByteStream& stream, std::span<std::byte> into, Deadline deadline);

/// A connected TCP or Unix stream socket as a plain stream; makes it non-blocking.
Result<std::unique_ptr<ByteStream>> socket_stream(FileDescriptor socket, std::string peer);

}  // namespace percheron
