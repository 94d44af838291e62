#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/run_setup.h"
#include "base/file_system.h"
#include "base/status.h"
#include "data/offline_features.h"

namespace percheron {

/// What a device is asked to hold, found by running the model's own code on a device that only
/// counts.
struct DevicePlan {
  DeviceId id;
  int targets = 0, trainers = 0;  // actors on it
  int rank = 0, ranks = 1;        // of the devices that hold its target together
  bool borrows = false;           // no target: embedding and head are loaded for its trainers alone
  uint64_t target_bytes = 0;      // weights of the target, its shard or what is borrowed of it
  uint64_t trainer_bytes = 0;     // of all its trainers: weights, moments, gradients, caches
  uint64_t scratch_bytes = 0;     // the most that loading, a pass of the target, a micro-batch, an
                                  // update or an evaluation takes, and a sixteenth: they take turns
  uint64_t pinned_bytes = 0;      // of the host's memory: where captured states and those of the
                                  // next micro-batch pass through, and small uploads

  uint64_t bytes() const { return target_bytes + trainer_bytes + scratch_bytes; }
};

/// The devices of a placement, nothing counted yet.
std::vector<DevicePlan> plan_devices(const PlacementPlan& placement);

/// What a run will do and take, before it does.
struct RunPlan {
  std::shared_ptr<const RunSetup> setup;             // a copy
  int64_t steps = 0, epochs = 0, micro_batches = 0;  // of the whole run
  int64_t samples = 0, tokens = 0;                   // of one epoch
  double fill = 0;                                   // of the token budget, in the first epoch
  double efficiency = 1;  // tokens of samples over tokens with their padding
  uint64_t feature_bytes_per_token = 0;
  uint64_t feature_bytes_per_epoch = 0;
  uint64_t held_out_bytes = 0;             // kept in host memory for the whole run
  std::optional<OfflineCoverage> offline;  // what lies in the files of features.from
  int64_t trained_parameters = 0, frozen_parameters = 0;
  std::vector<DevicePlan> devices;
  std::vector<std::string> notes;  // what a reader should know before starting

  /// What the run can't do without in host memory: CPU devices, what others pin, the features of
  /// one step, those held out.
  uint64_t host_bytes() const;
  /// For people; several lines.
  std::string text() const;
};

/// Memory that a machine has, in bytes.
struct MachineMemory {
  uint64_t host = 0;                     // CPU and emulated devices share it
  std::map<DeviceId, uint64_t> devices;  // with memory of their own
};

/// kResourceExhausted names the device or the host whose memory is less than the plan needs at
/// least, with both numbers and what to change. A device that `memory` does not know fits.
Status check_plan_fits(const RunPlan& plan, const MachineMemory& memory);

/// Plans a run without training. Errors as Target::load() and check_plan_fits(). Reads the target's
/// weights.
Result<RunPlan> plan_run(const RunSetup& setup, FileSystem& files);

}  // namespace percheron
