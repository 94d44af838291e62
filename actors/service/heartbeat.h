#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "actors/service/frame_link.h"

namespace percheron {

/// Says twice a second on a process's link that it lives, from a thread of its own, whatever else
/// the process does; not while the thread that reads the link is stuck in one frame.
class Heartbeat {
 public:
  /// `link` is borrowed.
  explicit Heartbeat(FrameLink& link) : link_(link), thread_([this] { run(); }) {}
  ~Heartbeat();

 private:
  void run();

  FrameLink& link_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ending_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace percheron
