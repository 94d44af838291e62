#include "data/transport/unix_listener.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"

namespace percheron {
namespace {

constexpr int kBacklog = 16;

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return failed_precondition("the socket's path " + path + " is longer than the system allows (" +
                               std::to_string(sizeof address.sun_path - 1) +
                               " bytes): give a shorter directory");
  }
  std::memcpy(address.sun_path, path.c_str(), path.size());
  return address;
}

Result<FileDescriptor> connect_to(const std::string& path) {
  PERCHERON_ASSIGN_OR_RETURN(const sockaddr_un address, address_of(path));
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return os_error("make a socket", errno);
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return os_error("connect to " + path, errno);
  }
  return socket;
}

bool is_socket(const std::string& path) {
  struct stat status = {};
  return lstat(path.c_str(), &status) == 0 && S_ISSOCK(status.st_mode);
}

}  // namespace

Result<std::unique_ptr<UnixListener>> UnixListener::start(const std::string& path, Serve serve) {
  PERCHERON_ASSIGN_OR_RETURN(const sockaddr_un address, address_of(path));
  if (is_socket(path)) {
    if (connect_to(path).ok()) {
      return failed_precondition("somebody listens on " + path + " already");
    }
    unlink(path.c_str());  // What a killed process left.
  }
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return os_error("make a socket", errno);
  if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(socket.get(), kBacklog) != 0) {
    return os_error("listen on " + path, errno);
  }
  return std::unique_ptr<UnixListener>(new UnixListener(std::move(socket), path, std::move(serve)));
}

UnixListener::UnixListener(FileDescriptor socket, std::string path, Serve serve)
    : socket_(std::move(socket)), path_(std::move(path)), serve_(std::move(serve)) {
  accepter_ = std::thread([this] { accept_all(); });
}

UnixListener::~UnixListener() { stop(); }

void UnixListener::join_ended_locked() {
  for (int number : ended_) {
    const auto thread = threads_.find(number);
    thread->second.join();
    threads_.erase(thread);
  }
  ended_.clear();
}

void UnixListener::accept_all() {
  while (true) {
    FileDescriptor socket(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const int error = errno;
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    join_ended_locked();
    if (!socket.valid()) {
      if (error != EINTR && error != ECONNABORTED) {
        log_warning("{}: {}", path_, std::strerror(error));
      }
      continue;
    }
    if (threads_.size() >= kConnectionsMax) continue;  // It is closed.
    const int number = next_++;
    threads_[number] = std::thread(
        [this, number, fd = socket.release()] { serve_one(number, FileDescriptor(fd)); });
  }
}

void UnixListener::serve_one(int number, FileDescriptor socket) {
  Result<std::unique_ptr<FrameChannel>> channel = unix_channel(std::move(socket), "an operator");
  if (channel.ok()) {
    const std::shared_ptr<FrameChannel> shared = std::move(channel).value();
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      channels_[number] = shared;
    }
    serve_(*shared);
  }
  const std::lock_guard lock(mutex_);
  channels_.erase(number);
  if (!stopping_) ended_.push_back(number);
}

void UnixListener::stop() {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
    for (const auto& [number, channel] : channels_) channel->close();
  }
  shutdown(socket_.get(), SHUT_RDWR);  // Wakes accept().
  accepter_.join();
  for (auto& [number, thread] : threads_) thread.join();
  unlink(path_.c_str());
}

Result<std::unique_ptr<FrameChannel>> connect_unix(const std::string& path) {
  PERCHERON_ASSIGN_OR_RETURN(FileDescriptor socket, connect_to(path));
  return unix_channel(std::move(socket), path);
}

}  // namespace percheron
