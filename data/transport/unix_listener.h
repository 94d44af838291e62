#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/status.h"
#include "data/transport/frame_channel.h"

namespace percheron {

/// A Unix socket in the file system for programs of this machine and user: its directory's
/// permissions say who may connect. Each connection has a thread of its own.
class UnixListener {
 public:
  static constexpr size_t kConnectionsMax = 64;

  /// Owns the channel; runs on its thread as long as the connection lives. stop() closes it.
  using Serve = std::function<void(FrameChannel&)>;

  /// Binds `path`, in place of a socket that nobody listens on. kFailedPrecondition when somebody
  /// does, or for a path that is too long or taken by something else.
  static Result<std::unique_ptr<UnixListener>> start(const std::string& path, Serve serve);
  /// stop()
  ~UnixListener();

  /// Takes no more connections, closes all, waits for their threads, removes the socket.
  void stop();

 private:
  UnixListener(FileDescriptor socket, std::string path, Serve serve);
  void accept_all();
  void serve_one(int number, FileDescriptor socket);
  void join_ended_locked();

  FileDescriptor socket_;
  const std::string path_;
  const Serve serve_;
  std::mutex mutex_;
  bool stopping_ = false;
  int next_ = 0;
  std::map<int, std::shared_ptr<FrameChannel>> channels_;
  std::map<int, std::thread> threads_;
  std::vector<int> ended_;  // threads to be joined
  std::thread accepter_;    // last: it uses the others
};

/// Connects to a UnixListener. kUnavailable, naming the path, when nobody listens there.
Result<std::unique_ptr<FrameChannel>> connect_unix(const std::string& path);

}  // namespace percheron
