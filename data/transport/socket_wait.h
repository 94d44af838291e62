#pragma once

#include <cstddef>

#include "base/status.h"
#include "data/transport/deadline.h"

namespace percheron {

enum class Readiness { kRead, kWrite };

/// Waits until `fd` can be read or written without blocking, or has failed or ended, which the next
/// call on it tells. False when `deadline` passes first.
Result<bool> wait_ready(int fd, Readiness readiness, Deadline deadline);

/// How many bytes must be there for wait_ready() to call a TCP socket readable. Its end, an error
/// and a full receive buffer make it readable all the same. Belongs to the socket's reader.
class LowWaterMark {
 public:
  /// A receive buffer as the kernel gives it to a busy connection holds several of these, so that
  /// the sender goes on meanwhile.
  static constexpr size_t kBytesMax = size_t{256} << 10;

  /// `bytes`, within 1 and kBytesMax, of `fd`, the same socket each time.
  Status set(int fd, size_t bytes);

 private:
  int mark_ = 1;
};

/// Makes calls on `fd` return instead of waiting.
Status set_nonblocking(int fd);

/// Ends what is written to the socket `fd` and reads away what the peer still sends, a little and
/// for a moment at most: closing with unread bytes would take the last words from the peer.
void finish_socket(int fd);

}  // namespace percheron
