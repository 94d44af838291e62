#pragma once

#include "base/status.h"
#include "bench/measurement.h"
#include "data/micro_batch.h"
#include "kernels/device.h"
#include "model/target.h"

namespace percheron {

/// Passes of a target in a row, whose captured states go to host memory and become features, and
/// others whose states stay on the device. Both put the next pass in before the one before is done.
struct CaptureToHost {
  int passes = 0;  // of a run
  Timings to_host, on_device;

  /// Throughput with captures to the host, of that without: over all runs, which take turns.
  double ratio() const;
};

/// Times runs of both for `seconds` together, after one of each that is not counted. The target's
/// states are captured in bf16.
Result<CaptureToHost> time_capture_to_host(Context& context, Target& target,
                                           const MicroBatch& batch, double seconds);

}  // namespace percheron
