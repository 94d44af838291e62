#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/batch_source.h"
#include "actors/run_setup.h"
#include "actors/step_trainer.h"
#include "base/file_system.h"
#include "data/fingerprint.h"
#include "data/safetensors.h"
#include "proto/checkpoint.pb.h"

namespace percheron {

/// What a run remembers beside parameters and moments.
struct RunProgress {
  int64_t step = 0;  // steps applied
  int64_t micro_batches = 0;
  int64_t tokens = 0;
  int64_t samples = 0;
  double seconds = 0;
  int64_t supervised = 0;
  double feature_seconds = 0, train_seconds = 0;  // busy time of targets and trainers
  int64_t steps_skipped = 0, steals = 0;
  uint32_t ledger_crc32c = 0;  // over (step, epoch, first, count) of every applied step
  std::optional<int64_t> best_step;
  double best_acceptance = 0;
};

/// The ledger's checksum after one more step.
uint32_t ledger_crc32c(uint32_t crc, const PlannedStep& step);

/// What written checkpoints of one run have in common.
struct CheckpointSettings {
  std::shared_ptr<const RunSetup> setup;
  Fingerprint fingerprint;  // resume_fingerprint()
  std::shared_ptr<BatchSource> batches;
};

/// Writes the step directory: the drafter as servers load it, training_state/, the run's
/// configuration; then removes old ones. `may_publish` as write_checkpoint(). Returns its path.
/// Blocks on disk.
Result<std::string> write_run_checkpoint(FileSystem& files, const CheckpointSettings& settings,
                                         const TrainerSnapshot& snapshot,
                                         const RunProgress& progress,
                                         const std::function<Status()>& may_publish = {});

/// A checkpoint that a run goes on from. Tensors are views into the mapped file.
struct ResumePoint {
  std::string path;
  RunProgress progress;
  std::map<std::string, ConstTensorView> masters;
  OptimizerState optimizer;
  std::vector<std::string> changes;  // a sentence for each changeable setting that differs
  SafetensorsFile masters_file;
};

/// Reads the checkpoint at `path` whole. kFailedPrecondition names the field in which this run
/// differs from it, cursor, ledger and order of samples included (TorchSpec#43); kDataLoss a file
/// that is damaged.
Result<ResumePoint> read_run_checkpoint(FileSystem& files, const std::string& path,
                                        const CheckpointSettings& settings);

/// Proves that what was just written loads and equals `snapshot` to the bit.
Status prove_run_checkpoint(FileSystem& files, const std::string& path,
                            const CheckpointSettings& settings, const TrainerSnapshot& snapshot);

}  // namespace percheron
