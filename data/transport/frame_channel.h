#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "data/transport/byte_stream.h"
#include "data/transport/deadline.h"
#include "data/transport/file_descriptor.h"

namespace percheron {

/// One message as it arrived.
struct Frame {
  std::string bytes;
  FileDescriptor fd;  // not valid where none was sent
};

/// A connection that carries frames both ways, each whole and in order; a frame may be empty.
/// Thread-safe: senders take turns, receivers too, and close() ends both.
///
/// Errors: kUnavailable when the peer closed, broke off or took nothing until the deadline,
/// kCancelled after close(), kInvalidArgument for a frame to send that is too long, kDataLoss for
/// bytes that are no frame, as a length above the limit, which is refused before any allocation.
/// After an error of receive(), or one of send() other than kInvalidArgument, the channel is of no
/// more use.
class FrameChannel {
 public:
  static constexpr size_t kFrameBytesMax = size_t{1} << 20;

  virtual ~FrameChannel() = default;
  /// Sends `bytes`, and with them a copy of the descriptor `fd` (borrowed, may be null).
  /// kInvalidArgument for a descriptor where the channel leaves the machine.
  virtual Status send(std::string_view bytes, Deadline deadline,
                      const FileDescriptor* fd = nullptr) = 0;
  /// Waits for the next frame until `deadline`; nothing when it has not come whole by then, and
  /// what came of it is kept for the next call.
  virtual Result<std::optional<Frame>> receive(Deadline deadline) = 0;
  /// From any thread; wakes whoever waits here and at the other end.
  virtual void close() = 0;
  /// The other end, for messages.
  virtual std::string peer() const = 0;
  virtual size_t frame_bytes_max() const = 0;
};

using ChannelPair = std::pair<std::unique_ptr<FrameChannel>, std::unique_ptr<FrameChannel>>;

/// Over a stream, plain or TLS: 4 bytes of length, little-endian, then the frame. No descriptors.
std::unique_ptr<FrameChannel> stream_channel(std::unique_ptr<ByteStream> stream,
                                             size_t frame_bytes_max = FrameChannel::kFrameBytesMax);

/// Over one end of a Unix stream socket (socketpair), which may pass descriptors. `peer` names the
/// other end in messages.
Result<std::unique_ptr<FrameChannel>> unix_channel(
    FileDescriptor socket, std::string peer, size_t frame_bytes_max = FrameChannel::kFrameBytesMax);

/// Both ends of a new Unix socket. The descriptors are closed on exec: a child that shall keep its
/// end across exec duplicates it.
Result<std::pair<FileDescriptor, FileDescriptor>> unix_socket_pair();

/// Two ends within this process, for tests; at most `frames_max` frames wait in each direction.
ChannelPair memory_channel_pair(size_t frame_bytes_max = FrameChannel::kFrameBytesMax,
                                size_t frames_max = 64);

}  // namespace percheron
