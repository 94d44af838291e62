#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kernels/cuda/emulator/device_memory.h"
#include "kernels/cuda/emulator/machine.h"

namespace percheron::emulator {

class WorkQueue;

/// The order in which the streams of one emulated device do their work: as late as a GPU might.
/// Nothing runs before somebody waits for it, and of the other streams only what that work waits
/// for. So results that are read, and host memory that is freed or written, without a wait show;
/// and so does the lack of an order between streams. One piece of work at a time, in whichever
/// thread waits.
class Timeline {
 public:
  /// Both are borrowed.
  Timeline(Machine& machine, DeviceMemory& memory) : machine_(machine), memory_(memory) {}

  std::shared_ptr<WorkQueue> make_queue();
  /// Runs everything that was put into any queue: what freeing memory of a GPU waits for.
  void finish_all();
  /// Spoils the recordings of the calling thread, which may not do `what` meanwhile.
  void refuse_recordings(const std::string& what);

 private:
  friend class WorkQueue;

  /// Whether work that was not done yet copies from this host memory. The caller holds mutex_.
  bool reads_host(const char* begin, const char* end) const;

  Machine& machine_;
  DeviceMemory& memory_;
  std::mutex mutex_;  // held while work runs
  std::vector<std::weak_ptr<WorkQueue>> queues_;
};

/// A point in a queue: behind so many pieces of work. The default one is in none.
struct QueuePoint {
  std::shared_ptr<WorkQueue> queue;
  uint64_t after = 0;
};

/// The work of one stream. Made by Timeline::make_queue().
class WorkQueue : public std::enable_shared_from_this<WorkQueue> {
 public:
  /// A queue that is as long runs its work, as a GPU's makes who puts more into it wait.
  static constexpr size_t kWorkMax = 1024;

  explicit WorkQueue(Timeline& timeline) : timeline_(timeline) {}

  /// Puts `work` in. What it refers to must stay valid until a wait. Once a piece has failed the
  /// later ones are dropped until take_error().
  void add(std::function<Status()> work);
  void launch(const LaunchShape& shape, std::function<void()> kernel);
  /// Of host or device memory. Host memory that it writes is NaN bytes until it is done.
  void copy(void* destination, const void* source, size_t bytes);
  QueuePoint point();
  /// Later work begins after `point`.
  void wait_for(QueuePoint point);
  /// Runs the work so far and returns and clears the first error.
  Status finish();
  /// Runs the work before `point`; returns the first error of the queue's work so far, which stays.
  static Status finish(const QueuePoint& point);

  /// Pieces of work in their order, to be put in again; they belong to the queue that recorded
  /// them.
  using Recording = std::vector<std::function<Status()>>;

  /// Until end_recording(), work of the calling thread is kept and not run. An error if there is a
  /// recording already.
  Status begin_recording();
  /// An error says what was done meanwhile that can't be recorded: a copy from or to host memory, a
  /// point, a wait, or what Timeline::refuse_recordings() was told.
  Result<std::shared_ptr<const Recording>> end_recording();
  /// Puts a recording in as one piece.
  void replay(std::shared_ptr<const Recording> recording);

 private:
  friend class Timeline;

  struct Recorder {
    Recording work;
    std::thread::id thread;
    std::string refused;  // what was first done that can't be recorded
  };

  struct Work {
    std::function<Status()> run;
    std::pair<const char*, const char*> host_source = {nullptr, nullptr};
  };

  // The caller holds timeline_.mutex_.
  void add_locked(Work work);
  void run_until(uint64_t after);
  void refuse(const std::string& what) {
    if (recorder_ && recorder_->refused.empty()) recorder_->refused = what;
  }

  Timeline& timeline_;
  std::deque<Work> work_;
  uint64_t added_ = 0, done_ = 0;
  Status error_;
  std::optional<Recorder> recorder_;
};

}  // namespace percheron::emulator
