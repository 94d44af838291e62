#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "actors/work_thread.h"
#include "data/transport/bulk_client.h"

namespace percheron {

/// Pulls what one worker asks of other nodes, beside the thread that hears the worker; what is
/// pulled for a worker that is gone ends at once.
class FeaturePuller {
 public:
  /// A pull, which ends soon after it is cancelled.
  using Job = std::function<void(PullCancellation&)>;

  /// `clock` is borrowed.
  FeaturePuller(const std::string& device, const Clock& clock) : thread_("pull " + device, clock) {}
  ~FeaturePuller() { stop(); }

  /// On a thread of its own, one after the other; here and now where many wait already, so that a
  /// worker is heard no faster than it is served.
  void post(Job job);
  /// Cancels what runs, drops what waits, and takes nothing more. Any thread; does not wait.
  void cancel();
  /// cancel(), then waits for what runs on the thread.
  void stop();

 private:
  static constexpr size_t kWaitingMax = 64;
  void run(const Job& job);

  std::mutex mutex_;
  bool over_ = false;
  std::set<PullCancellation*> running_;
  WorkThread thread_;  // last: it uses the others
};

}  // namespace percheron
