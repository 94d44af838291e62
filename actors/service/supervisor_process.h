#pragma once

#include <memory>
#include <vector>

#include "actors/run_parts.h"
#include "actors/service/frame_link.h"
#include "actors/service/order_book.h"
#include "actors/service/placement.h"
#include "base/status.h"
#include "proto/control.pb.h"

namespace percheron {

/// A run whose targets and trainers are processes of their own, as the process sees it that decides
/// for the run and that a daemon started.
class ServiceRun {
 public:
  /// Of a run as its configuration says, on this node. Errors as resolve_run() and
  /// read_placement(). `daemon` and `clock` are borrowed.
  static Result<std::unique_ptr<ServiceRun>> make(FrameLink& daemon,
                                                  const proto::StartSupervisor& order,
                                                  FileSystem& files, const Clock& clock);
  virtual ~ServiceRun() = default;

  virtual const std::shared_ptr<const RunSetup>& setup() const = 0;
  /// Whether the first target's device is of this node, and in the run still.
  virtual bool measures_here() const = 0;
  /// What operators have asked of the run.
  virtual OrderBook& orders() = 0;
  virtual std::vector<proto::WorkerState> workers() = 0;

  /// Starts the workers, checks that all of them have the same target and rows, looks for a
  /// checkpoint and gives them what they need. Errors name the worker.
  virtual Result<std::unique_ptr<RunParts>> start_workers(const RunEnvironment& environment) = 0;
  /// Runs to the end. Workers that die meanwhile are started again.
  virtual Result<RunSummary> run(RunParts& parts, const RunEnvironment& environment) = 0;
  /// Gives their devices back, after run().
  virtual void end_workers() = 0;
};

}  // namespace percheron
