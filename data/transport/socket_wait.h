#pragma once

#include "base/status.h"
#include "data/transport/deadline.h"

namespace percheron {

enum class Readiness { kRead, kWrite };

/// Waits until `fd` can be read or written without blocking, or has failed or ended, which the next
/// call on it tells. False when `deadline` passes first.
Result<bool> wait_ready(int fd, Readiness readiness, Deadline deadline);

/// Makes calls on `fd` return instead of waiting.
Status set_nonblocking(int fd);

/// Ends what is written to the socket `fd` and reads away what the peer still sends, a little and
/// for a moment at most: closing with unread bytes would take the last words from the peer.
void finish_socket(int fd);

}  // namespace percheron
