#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <vector>

#include "data/transport/frame_channel.h"
#include "data/transport/frame_length.h"
#include "data/transport/socket_wait.h"

namespace percheron {
namespace {

// Length of the frame, then how many descriptors (0 or 1) came with the header's first byte.
constexpr size_t kHeaderBytes = kLengthBytes + 1;
constexpr size_t kDescriptorsMax = 4;  // that one message may bring before the kernel drops some

using Control = std::array<char, CMSG_SPACE(sizeof(int) * kDescriptorsMax)>;

// Owns all descriptors that came with `message`.
std::vector<FileDescriptor> descriptors_of(msghdr& message) {
  std::vector<FileDescriptor> descriptors;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
      descriptors.emplace_back(fd);
    }
  }
  return descriptors;
}

class UnixChannel final : public FrameChannel {
 public:
  UnixChannel(FileDescriptor socket, std::string peer, size_t frame_bytes_max)
      : socket_(std::move(socket)), peer_(std::move(peer)), frame_bytes_max_(frame_bytes_max) {}

  Status send(std::string_view bytes, Deadline deadline, const FileDescriptor* fd) override {
    PERCHERON_RETURN_IF_ERROR(check_outgoing_length(bytes.size(), frame_bytes_max_, peer_));
    std::array<char, kHeaderBytes> header;
    std::ranges::copy(encode_length(bytes.size()), header.begin());
    header.back() = fd != nullptr ? 1 : 0;
    const std::lock_guard lock(send_mutex_);
    if (send_error_.ok()) send_error_ = write(header, bytes, fd, deadline);
    return send_error_;
  }

  Result<std::optional<Frame>> receive(Deadline deadline) override {
    const std::lock_guard lock(receive_mutex_);
    PERCHERON_ASSIGN_OR_RETURN(const bool have_header, fill(header_, header_filled_, deadline));
    if (!have_header) return std::optional<Frame>();
    const size_t size = decode_length(std::span(header_).first<kLengthBytes>());
    PERCHERON_RETURN_IF_ERROR(check_incoming_length(size, frame_bytes_max_, peer_));
    if (incoming_.size() != size) incoming_.resize(size);
    PERCHERON_ASSIGN_OR_RETURN(const bool whole, fill(incoming_, filled_, deadline));
    if (!whole) return std::optional<Frame>();
    if (descriptors_.size() != static_cast<unsigned char>(header_.back())) {
      return data_loss(
          peer_ + " announces " + std::to_string(static_cast<unsigned char>(header_.back())) +
          " file descriptors with a frame and sends " + std::to_string(descriptors_.size()));
    }
    Frame frame;
    frame.bytes = std::move(incoming_);
    if (!descriptors_.empty()) frame.fd = std::move(descriptors_.front());
    incoming_.clear();
    descriptors_.clear();
    header_filled_ = filled_ = 0;
    return std::optional<Frame>(std::move(frame));
  }

  void close() override {
    if (!closed_.exchange(true)) ::shutdown(socket_.get(), SHUT_RDWR);
  }
  std::string peer() const override { return peer_; }
  size_t frame_bytes_max() const override { return frame_bytes_max_; }

 private:
  Status write(std::span<char> header, std::string_view bytes, const FileDescriptor* fd,
               Deadline deadline) {
    // sendmsg() only reads what it is given.
    iovec parts[] = {{header.data(), header.size()},
                     {const_cast<char*>(bytes.data()), bytes.size()}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    if (fd != nullptr) attach(*fd, control, message);
    while (parts[0].iov_len + parts[1].iov_len > 0) {
      if (closed_) return closed_here();
      const ssize_t count = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
      if (count >= 0) {
        message.msg_control = nullptr;  // It went with the first byte.
        message.msg_controllen = 0;
        advance(parts, static_cast<size_t>(count));
        continue;
      }
      if (errno == EINTR) continue;
      if (closed_) return closed_here();
      if (errno != EAGAIN) return os_error("write to " + peer_, errno);
      PERCHERON_ASSIGN_OR_RETURN(const bool ready,
                                 wait_ready(socket_.get(), Readiness::kWrite, deadline));
      if (!ready) return unavailable(peer_ + " took no bytes in time");
    }
    return ok_status();
  }

  static void attach(const FileDescriptor& fd, std::span<char> control, msghdr& message) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int));
    const int number = fd.get();
    std::memcpy(CMSG_DATA(part), &number, sizeof number);
  }

  static void advance(std::span<iovec> parts, size_t count) {
    for (iovec& part : parts) {
      const size_t step = std::min(count, part.iov_len);
      part.iov_base = static_cast<char*>(part.iov_base) + step;
      part.iov_len -= step;
      count -= step;
    }
  }

  // Reads into `bytes` behind `filled`. False when the deadline passes before it is full.
  Result<bool> fill(std::span<char> bytes, size_t& filled, Deadline deadline) {
    while (filled < bytes.size()) {
      if (closed_) return closed_here();
      iovec part = {bytes.data() + filled, bytes.size() - filled};
      alignas(cmsghdr) Control control;
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      const ssize_t count = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
      if (count < 0) {
        if (errno == EINTR) continue;
        if (errno != EAGAIN) return os_error("read from " + peer_, errno);
        PERCHERON_ASSIGN_OR_RETURN(const bool ready,
                                   wait_ready(socket_.get(), Readiness::kRead, deadline));
        if (!ready) return false;
        continue;
      }
      for (FileDescriptor& fd : descriptors_of(message)) descriptors_.push_back(std::move(fd));
      if ((message.msg_flags & MSG_CTRUNC) != 0) {
        return resource_exhausted("file descriptors from " + peer_ +
                                  " were lost: this process has too many open files");
      }
      if (descriptors_.size() > 1) {
        return data_loss(peer_ + " sends more than one file descriptor with a frame");
      }
      if (count == 0) {
        return closed_ ? closed_here() : unavailable(peer_ + " closed the connection");
      }
      filled += static_cast<size_t>(count);
    }
    return true;
  }

  Status closed_here() const {
    return cancelled("the connection to " + peer_ + " was closed here");
  }

  const FileDescriptor socket_;
  const std::string peer_;
  const size_t frame_bytes_max_;
  std::atomic<bool> closed_{false};
  std::mutex send_mutex_;
  Status send_error_;  // guarded by send_mutex_
  std::mutex receive_mutex_;
  // Of the frame that is coming; guarded by receive_mutex_.
  std::array<char, kHeaderBytes> header_{};
  size_t header_filled_ = 0;
  std::string incoming_;
  size_t filled_ = 0;
  std::vector<FileDescriptor> descriptors_;
};

}  // namespace

Result<std::unique_ptr<FrameChannel>> unix_channel(FileDescriptor socket, std::string peer,
                                                   size_t frame_bytes_max) {
  PERCHERON_RETURN_IF_ERROR(set_nonblocking(socket.get()));
  return std::unique_ptr<FrameChannel>(
      std::make_unique<UnixChannel>(std::move(socket), std::move(peer), frame_bytes_max));
}

Result<std::pair<FileDescriptor, FileDescriptor>> unix_socket_pair() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0) {
    return os_error("make a pair of sockets", errno);
  }
  return std::pair(FileDescriptor(fds[0]), FileDescriptor(fds[1]));
}

}  // namespace percheron
