#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "data/transport/file_descriptor.h"

namespace percheron {

/// A process that this one started and reaps. The file descriptor `kLinkDescriptor` of the child is
/// its end of a socket pair; beside that and its standard ones it has none of this process's.
class LinkedProcess {
 public:
  static constexpr int kLinkDescriptor = 3;

  struct Command {
    std::string program;                 // its path
    std::vector<std::string> arguments;  // the first is the name that others see
    std::string log;                     // stdout and stderr are appended to this file, and
                                         // kReopenSignal opens it again (process_output.h)
  };
  /// Told once, on a thread of the child's own, how it ended: "exit status 1", "signal 9 (Killed)".
  using OnEnd = std::function<void(bool well, const std::string& how)>;

  /// `link` is the child's end, which is closed here. kUnavailable when no process can be made.
  static Result<std::unique_ptr<LinkedProcess>> start(const Command& command, FileDescriptor link,
                                                      OnEnd on_end);
  /// Waits for the end; signal() first.
  ~LinkedProcess();

  pid_t pid() const { return pid_; }
  /// No effect once it has ended.
  void signal(int number);

 private:
  explicit LinkedProcess(pid_t pid) : pid_(pid) {}
  void reap(const OnEnd& on_end);

  const pid_t pid_;
  std::mutex mutex_;
  bool ended_ = false;  // and reaped: the number may belong to another process
  std::thread reaper_;
};

}  // namespace percheron
