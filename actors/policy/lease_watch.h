#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "actors/policy/silence_watch.h"
#include "actors/policy/worker_roll.h"
#include "data/micro_batch.h"

namespace percheron {

/// Finds the workers that are at a micro-batch, or at the update of a step, for so long that their
/// device must have hung, though their process lives. Times are seconds of one clock.
class LeaseWatch {
 public:
  struct Overdue {
    WorkerKind kind = WorkerKind::kTarget;
    int number = 0;
    MicroBatchId id;
    std::optional<int64_t> step = {};  // the update of this step, not a micro-batch
  };

  /// `seconds`: how long a worker may be at one of these; 0 = for ever.
  explicit LeaseWatch(double seconds)
      : seconds_(seconds), watch_({seconds, seconds, kGapSeconds}) {}

  /// A target may hold several: the time of each begins when the one before is settled. A trainer
  /// held nothing, or nothing that counts, and is at this one from now on.
  void leased(WorkerKind kind, int number, MicroBatchId id, double now);
  /// A trainer holds this one too, and is at it once it has settled those before.
  void leased_ahead(int trainer, MicroBatchId id, double now);
  /// It has settled this one; a target also all that it was given before, which it does in that
  /// order. What it comes to by that has its full time. A trainer's that it is not at was settled
  /// by others than its device.
  void settled(WorkerKind kind, int number, MicroBatchId id, double now);
  /// It holds nothing any more, or has shown otherwise that its device works.
  void settled(WorkerKind kind, int number);
  /// A trainer is to update its parameters, for which it waits for nobody.
  void updates(int trainer, int64_t step, double now);
  void updated(int trainer);
  void lost(WorkerKind kind, int number);
  /// Devices do other work, which may take its time: all get their full time again.
  void excuse(double now) { watch_.excuse(now); }
  /// Nobody holds anything.
  void clear();

  /// Each is told once for what it holds.
  std::vector<Overdue> take_overdue(double now);

 private:
  void add(int64_t key, const Overdue& work, double now);
  void end(int64_t key);

  // Between two calls of take_overdue(): this process was itself held up.
  static constexpr double kGapSeconds = 5;

  const double seconds_;
  SilenceWatch watch_;
  std::map<int64_t, std::deque<Overdue>> held_;  // the first is the one that it is at; none empty
};

}  // namespace percheron
