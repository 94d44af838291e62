#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "actors/device_worker.h"
#include "actors/feature_maker.h"
#include "actors/policy/target_flow.h"
#include "actors/work_thread.h"
#include "base/clock.h"
#include "base/status.h"
#include "data/micro_batch.h"

namespace percheron {

/// One target that runs over micro-batches as fast as it can: the device's worker puts passes into
/// its stream, a thread of the lane's own waits for what comes of them and hands it on, in order,
/// while the next pass goes on.
class CaptureLane {
 public:
  struct Piece {
    MicroBatch batch;
    std::function<Status(MadeFeatures)> take;  // on the lane's thread
  };
  /// The next piece, none when all are handed out. On the device's worker.
  using Next = std::function<std::optional<Piece>()>;
  /// The last piece is taken, or one has failed and nothing is under way. Called once, on either
  /// thread.
  using Ended = std::function<void(const Status&)>;

  /// `worker` and `maker` are borrowed; so is `clock`.
  CaptureLane(DeviceWorker& worker, FeatureMaker& maker, const Clock& clock, Next next,
              Ended ended);

  void start() { go_on(); }
  /// After `ended`: nothing runs any more.
  void stop() { finisher_.stop(); }

 private:
  struct Flight;
  using FlightPtr = std::shared_ptr<Flight>;

  void begin(Context& context);
  void finish(const FlightPtr& flight);
  void again(Context& context, const FlightPtr& flight);
  /// On the lane's thread.
  void take(const FlightPtr& flight, Result<MadeFeatures> made);
  /// Nothing begins any more.
  void end_with(const Status& status);
  /// Begins what may begin; says so when nothing is left.
  void go_on();

  DeviceWorker& worker_;
  FeatureMaker& maker_;
  const Next next_;
  const Ended ended_;
  std::mutex mutex_;
  TargetFlow flow_;         // guarded by mutex_, as are all below
  bool exhausted_ = false;  // no piece is left, or one has failed
  bool over_ = false;       // and `ended_` was told
  Status failed_;
  WorkThread finisher_;  // last: it uses the others
};

}  // namespace percheron
