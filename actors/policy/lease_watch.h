#pragma once

#include <map>
#include <vector>

#include "actors/policy/silence_watch.h"
#include "actors/policy/worker_roll.h"
#include "data/micro_batch.h"

namespace percheron {

/// Finds the workers that hold a micro-batch for so long that their device must have hung, though
/// their process lives. Times are seconds of one clock.
class LeaseWatch {
 public:
  struct Overdue {
    WorkerKind kind = WorkerKind::kTarget;
    int number = 0;
    MicroBatchId id;
  };

  /// `seconds`: how long a worker may hold one micro-batch; 0 = for ever.
  explicit LeaseWatch(double seconds)
      : seconds_(seconds), watch_({seconds, seconds, kGapSeconds}) {}

  void leased(WorkerKind kind, int number, MicroBatchId id, double now);
  /// It has settled what it held, or shown otherwise that its device works, or is lost.
  void settled(WorkerKind kind, int number);
  /// Devices do other work, which may take its time: all get their full time again.
  void excuse(double now) { watch_.excuse(now); }
  /// Nobody holds anything.
  void clear();

  /// Each is told once for what it holds.
  std::vector<Overdue> take_overdue(double now);

 private:
  // Between two calls of take_overdue(): this process was itself held up.
  static constexpr double kGapSeconds = 5;

  const double seconds_;
  SilenceWatch watch_;
  std::map<int64_t, Overdue> held_;
};

}  // namespace percheron
