#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>

#include "base/check.h"
#include "data/transport/byte_stream.h"
#include "data/transport/socket_wait.h"

namespace percheron {
namespace {

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

class SocketStream final : public ByteStream {
 public:
  SocketStream(FileDescriptor socket, std::string peer)
      : socket_(std::move(socket)), peer_(std::move(peer)) {}

  Result<std::optional<size_t>> read_some(std::span<std::byte> into, Deadline deadline) override {
    return read(into, 1, deadline);
  }

  Result<std::optional<size_t>> read_batch(std::span<std::byte> into, Deadline deadline) override {
    return read(into, into.size(), deadline);
  }

  Status write(std::span<const std::byte> bytes, Deadline deadline) override {
    return write_parts({bytes}, deadline);
  }

  Status write_parts(std::initializer_list<std::span<const std::byte>> parts,
                     Deadline deadline) override {
    std::array<iovec, kPartsMax> left;
    PERCHERON_CHECK(parts.size() <= left.size(), "a write of too many parts");
    size_t count = 0;
    for (const std::span<const std::byte> part : parts) {
      if (!part.empty()) left[count++] = {const_cast<std::byte*>(part.data()), part.size()};
    }
    return write_all(std::span(left).first(count), deadline);
  }

  // The descriptor itself is closed by the destructor: a thread may still be in a call on it.
  void close() override {
    if (!closed_.exchange(true)) ::shutdown(socket_.get(), SHUT_RDWR);
  }

  void finish() override {
    if (!closed_) finish_socket(socket_.get());
  }

  std::string peer() const override { return peer_; }

 private:
  static constexpr size_t kPartsMax = 4;

  // Waits for `least` bytes where none are there.
  Result<std::optional<size_t>> read(std::span<std::byte> into, size_t least, Deadline deadline) {
    PERCHERON_CHECK(!into.empty(), "a read of no bytes");
    for (bool late = false;;) {
      if (closed_) return closed_here();
      const ssize_t count = ::recv(socket_.get(), into.data(), into.size(), 0);
      // A socket that close() shut down reads as ended.
      if (count == 0 && closed_) return closed_here();
      if (count >= 0) return std::optional<size_t>(static_cast<size_t>(count));
      if (errno == EINTR) continue;
      if (!would_block(errno)) return os_error("read from " + peer_, errno);
      if (late) return std::optional<size_t>();
      PERCHERON_RETURN_IF_ERROR(low_water_.set(socket_.get(), least));
      PERCHERON_ASSIGN_OR_RETURN(const bool ready,
                                 wait_ready(socket_.get(), Readiness::kRead, deadline));
      // Fewer than were waited for may be there.
      late = !ready;
    }
  }

  // Changes `left` as it goes.
  Status write_all(std::span<iovec> left, Deadline deadline) {
    while (!left.empty()) {
      if (closed_) return closed_here();
      msghdr message{};
      message.msg_iov = left.data();
      message.msg_iovlen = left.size();
      const ssize_t count = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
      if (count >= 0) {
        left = behind(left, static_cast<size_t>(count));
        continue;
      }
      if (errno == EINTR) continue;
      if (closed_) return closed_here();
      if (!would_block(errno)) return os_error("write to " + peer_, errno);
      PERCHERON_ASSIGN_OR_RETURN(const bool ready,
                                 wait_ready(socket_.get(), Readiness::kWrite, deadline));
      if (!ready) return unavailable(peer_ + " took no bytes in time");
    }
    return ok_status();
  }

  // What is left of `parts` behind their first `bytes` bytes.
  static std::span<iovec> behind(std::span<iovec> parts, size_t bytes) {
    while (!parts.empty() && bytes >= parts.front().iov_len) {
      bytes -= parts.front().iov_len;
      parts = parts.subspan(1);
    }
    if (!parts.empty()) {
      parts.front().iov_base = static_cast<std::byte*>(parts.front().iov_base) + bytes;
      parts.front().iov_len -= bytes;
    }
    return parts;
  }

  Status closed_here() const {
    return cancelled("the connection to " + peer_ + " was closed here");
  }

  const FileDescriptor socket_;
  const std::string peer_;
  LowWaterMark low_water_;  // the reader's
  std::atomic<bool> closed_{false};
};

}  // namespace

Result<bool> wait_ready(int fd, Readiness readiness, Deadline deadline) {
  pollfd poll_fd = {fd, static_cast<short>(readiness == Readiness::kRead ? POLLIN : POLLOUT), 0};
  for (;;) {
    const int count = ::poll(&poll_fd, 1, deadline.poll_ms());
    if (count > 0) return true;
    if (count == 0) {
      if (deadline.passed()) return false;
    } else if (errno != EINTR) {
      return os_error("wait for a connection", errno);
    }
  }
}

Status LowWaterMark::set(int fd, size_t bytes) {
  const int mark = static_cast<int>(std::clamp<size_t>(bytes, 1, kBytesMax));
  if (mark == mark_) return ok_status();
  if (::setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark) < 0) {
    return os_error("set up a connection", errno);
  }
  mark_ = mark;
  return ok_status();
}

Status set_nonblocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) {
    return os_error("set up a socket", errno);
  }
  return ok_status();
}

void finish_socket(int fd) {
  constexpr size_t kBytesMax = size_t{64} << 10;
  const Deadline deadline = Deadline::after(std::chrono::milliseconds(500));
  ::shutdown(fd, SHUT_WR);
  std::array<char, 4096> scratch;
  for (size_t total = 0; total < kBytesMax;) {
    const ssize_t count = ::recv(fd, scratch.data(), scratch.size(), MSG_DONTWAIT);
    if (count > 0) {
      total += static_cast<size_t>(count);
      continue;
    }
    if (count == 0 || (!would_block(errno) && errno != EINTR)) return;
    const Result<bool> ready = wait_ready(fd, Readiness::kRead, deadline);
    if (!ready.ok() || !*ready) return;
  }
}

Result<std::unique_ptr<ByteStream>> socket_stream(FileDescriptor socket, std::string peer) {
  PERCHERON_RETURN_IF_ERROR(set_nonblocking(socket.get()));
  return std::unique_ptr<ByteStream>(
      std::make_unique<SocketStream>(std::move(socket), std::move(peer)));
}

}  // namespace percheron
