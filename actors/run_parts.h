#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/batch_source.h"
#include "actors/device_sums.h"
#include "actors/device_worker.h"
#include "actors/feature_exchange.h"
#include "actors/feature_maker.h"
#include "actors/gradient_reduction.h"
#include "actors/held_out_features.h"
#include "actors/observer.h"
#include "actors/policy/credits.h"
#include "actors/policy/quarantine.h"
#include "actors/policy/run_activity.h"
#include "actors/run_checkpoint.h"
#include "actors/run_control.h"
#include "actors/run_setup.h"
#include "actors/step_trainer.h"
#include "actors/trainer_group.h"
#include "base/clock.h"
#include "base/file_system.h"
#include "data/feature_cache.h"
#include "data/feature_store.h"
#include "data/offline_features.h"
#include "kernels/collective.h"
#include "kernels/device_groups.h"

namespace percheron {

/// What a target actor works with.
struct TargetPlace {
  DeviceWorker* worker = nullptr;  // may be shared
  std::unique_ptr<FeatureMaker> maker;
  int node = 0;  // whose store it fills
  // Waits for what comes of the passes; goes before the maker whose features it holds.
  std::unique_ptr<WorkThread> finisher;
};

/// What a trainer actor works with. All but `worker` is used by one job at a time.
struct TrainerPlace {
  DeviceWorker* worker = nullptr;  // may be shared
  std::unique_ptr<StepTrainer> trainer;
  std::unique_ptr<TrainerGroup> group;  // null where there is never another trainer
  std::vector<float> gradients;         // scratch of the reduction, host memory
  StepSums total;                       // over all trainers, once reduced
  // Where gradients are summed between devices; else null, and they go through `gradients`.
  std::unique_ptr<DeviceSums> sums;
  std::unique_ptr<WorkThread> reducer;   // waits for the others in the group; null as that is
  std::unique_ptr<WorkThread> disk;      // writes checkpoints where the supervisor is elsewhere
  std::unique_ptr<WorkThread> uploader;  // runs trainer->prepare(); null where that is of no use
  int node = 0;                          // whose store it reads first
};

/// What the stores of other processes may hold by the credits that were given out. Thread-safe.
struct GrantedBytes {
  std::atomic<uint64_t> bytes{0}, peak{0};
  std::atomic<uint64_t> bytes_max{0};  // of all of them together, which may become more
};

/// Everything that the actors of one process share. Made by train(), outlives the actors. Members
/// are destroyed from the last to the first: what lives on a device goes before its worker.
struct RunParts {
  explicit RunParts(std::shared_ptr<const RunSetup> run)
      : setup(std::move(run)), held_out(setup->config.evaluate().feature_bytes_max()) {}

  std::shared_ptr<const RunSetup> setup;
  FileSystem* files = nullptr;
  const Clock* clock = nullptr;
  std::unique_ptr<FileLock> output_lock;  // null where the file system knows no locks
  std::shared_ptr<BatchSource> batches;
  std::string fingerprint;  // digest that every feature carries
  CheckpointSettings checkpoint;
  std::string resumed_from;  // the checkpoint that the run goes on from; empty = a new run
  RunProgress progress;      // where the run starts
  HeldOutFeatures held_out;
  std::shared_ptr<RunActivity> activity;  // what those who watch the run are told
  std::unique_ptr<FeatureStore> store;
  std::unique_ptr<CreditSource> credits;  // where stores are elsewhere, too; null: the store's own
  std::shared_ptr<const GrantedBytes> granted;  // by `credits`; null with them
  std::unique_ptr<FeatureExchange> exchange;
  std::unique_ptr<Quarantine> quarantine;
  std::unique_ptr<OfflineFeatures> offline;  // null when no features were captured before
  std::unique_ptr<FeatureCache> cache;       // null when nothing is kept for later epochs
  std::vector<std::unique_ptr<DeviceWorker>> workers;
  std::map<DeviceId, std::unique_ptr<Target>> models;  // frozen targets, by the device of rank 0
  // Of weights of 8 bits with full ones, where the run's target has been compared.
  std::optional<WeightsComparison> weights_comparison;
  std::string weights_note;  // that, or that they are not compared, in words; empty with full ones
  std::map<DeviceId, const Target*> lenders;  // whose embedding and head a trainer there may borrow
  std::unique_ptr<CollectiveFactory> collectives;  // null where there is only one trainer
  // By which the trainers sum their gradients between their devices; null where these go through
  // host memory. Only where all trainers are in this process.
  std::unique_ptr<DeviceGroups> device_groups;
  uint64_t gradient_bucket_bytes = kGradientBucketBytes;
  std::vector<TargetPlace> targets;
  std::vector<TrainerPlace> trainers;
  // Asked before a checkpoint is published; null: nobody else may have the run.
  std::function<Status()> may_publish;
  std::mutex snapshot_mutex;
  std::unique_ptr<TrainerSnapshot> snapshot;  // on its way to the checkpoint thread

  /// The node of each.
  std::vector<int> target_nodes() const;
  std::vector<int> trainer_nodes() const;
};

/// Says why and ends the process at once, with exit status 1.
[[noreturn]] void end_process(const Status& why);

/// The world outside a run.
struct RunEnvironment {
  FileSystem& files;
  const Clock& clock;
  RunObserver& observer;
  const std::atomic<int>& stop_signals;  // how often the operator has asked to stop
  // Without a sign of life for so long the run ends with a report of who holds what (TorchSpec#53).
  double stall_seconds = 3600;
  int64_t checksum_steps = 100;  // trainers' parameters are compared every so many steps
  // Gradients that are summed in one exchange between devices, about.
  uint64_t gradient_bucket_bytes = kGradientBucketBytes;
  // A run that ends because it stands still, or at once, waits so long for the jobs that run.
  double stop_seconds = 10;
  // Called when they don't end: what they use can't be freed, so this ends the process. If it
  // returns, the run waits on.
  std::function<void(const Status&)> give_up = end_process;
  double worker_wait_seconds =
      300;                        // without any target, or trainer, the run waits so long for one
  RunControl* control = nullptr;  // steers the run; null: nobody does
  // Told what the actors do, and goes on counting where a run is resumed; null: the run has its
  // own.
  std::shared_ptr<RunActivity> activity = nullptr;
};

/// Runs the actors until the run ends and all of them are gone.
Result<RunSummary> run_actors(RunParts& parts, const RunEnvironment& environment);
class RemoteWorkers;
/// The same where `remote` starts the targets and trainers: those of other processes.
Result<RunSummary> run_actors(RunParts& parts, const RunEnvironment& environment,
                              RemoteWorkers* remote);

}  // namespace percheron
