#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "base/clock.h"

namespace percheron {

/// One operating-system thread that runs jobs in the order in which they were posted: whatever
/// waits for a device or a disk runs here and never on a scheduler thread (invariant 6). A job ends
/// by telling an actor.
class WorkThread {
 public:
  /// Jobs waiting at once. Every actor has at most a few in flight, so more is a bug.
  static constexpr size_t kJobsMax = 4096;

  /// `clock` is borrowed; it measures busy time.
  WorkThread(std::string name, const Clock& clock);
  ~WorkThread() { stop(); }
  WorkThread(const WorkThread&) = delete;
  WorkThread& operator=(const WorkThread&) = delete;

  /// Any thread.
  void post(std::function<void()> job);
  /// Waits until every job posted before is done, or the thread is stopped.
  void drain();
  /// Drops the jobs that have not begun and takes no more.
  void close();
  /// After close(): waits for the job that runs, for `seconds` of real time at most. False when it
  /// still runs.
  bool wait_ended(double seconds);
  /// close(), then waits for the job that runs.
  void stop();
  size_t waiting() const;

  const std::string& name() const { return name_; }
  /// Time spent in jobs, the running one not counted.
  double busy_seconds() const { return static_cast<double>(busy_ns_.load()) * 1e-9; }

 private:
  void run();

  const std::string name_;
  const Clock& clock_;
  mutable std::mutex mutex_;
  std::condition_variable wake_, job_done_;
  std::deque<std::function<void()>> jobs_;
  bool closing_ = false;
  bool ended_ = false;                 // the thread has left its loop
  int64_t posted_ = 0, finished_ = 0;  // jobs
  std::atomic<int64_t> busy_ns_{0};
  std::thread thread_;  // last: it uses the others
};

}  // namespace percheron
