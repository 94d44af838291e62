#include "actors/actor_system.h"
#include "data/checkpoint.h"

namespace percheron {
namespace {

Status write(RunParts& parts, const RunProgress& progress, bool prove, CheckpointWritten& done) {
  std::unique_ptr<TrainerSnapshot> snapshot;
  {
    const std::lock_guard lock(parts.snapshot_mutex);
    snapshot = std::move(parts.snapshot);
  }
  if (!snapshot) return unavailable("the trainer that was asked for its parameters is gone");
  PERCHERON_ASSIGN_OR_RETURN(
      done.path,
      write_run_checkpoint(*parts.files, parts.checkpoint, *snapshot, progress, parts.may_publish));
  const Result<uint64_t> bytes = checkpoint_bytes(*parts.files, done.path);
  done.bytes = bytes.ok() ? *bytes : 0;
  if (!prove) return ok_status();
  return prove_run_checkpoint(*parts.files, done.path, parts.checkpoint, *snapshot);
}

}  // namespace

CheckpointWritten write_snapshot(RunParts& parts, int64_t step, const RunProgress& progress,
                                 bool prove) {
  const int64_t begin = parts.clock->monotonic_ns();
  CheckpointWritten done;
  done.step = step;
  done.outcome = Outcome::of(write(parts, progress, prove, done));
  done.seconds = static_cast<double>(parts.clock->monotonic_ns() - begin) * 1e-9;
  return done;
}

void encode_progress(const RunProgress& progress, WriteCheckpoint& message) {
  message.counts = {progress.step,       progress.micro_batches,
                    progress.tokens,     progress.samples,
                    progress.supervised, progress.steps_skipped,
                    progress.steals,     static_cast<int64_t>(progress.ledger_crc32c)};
  if (progress.best_step) message.counts.push_back(*progress.best_step);
  message.measures = {progress.seconds, progress.feature_seconds, progress.train_seconds,
                      progress.best_acceptance};
}

Result<RunProgress> decode_progress(const WriteCheckpoint& message) {
  constexpr size_t kCounts = 8, kMeasures = 4;
  if (message.counts.size() < kCounts || message.measures.size() != kMeasures) {
    return invalid_argument("an order to write a checkpoint does not say how far the run is");
  }
  RunProgress progress;
  progress.step = message.counts[0];
  progress.micro_batches = message.counts[1];
  progress.tokens = message.counts[2];
  progress.samples = message.counts[3];
  progress.supervised = message.counts[4];
  progress.steps_skipped = message.counts[5];
  progress.steals = message.counts[6];
  progress.ledger_crc32c = static_cast<uint32_t>(message.counts[7]);
  if (message.counts.size() > kCounts) progress.best_step = message.counts[kCounts];
  progress.seconds = message.measures[0];
  progress.feature_seconds = message.measures[1];
  progress.train_seconds = message.measures[2];
  progress.best_acceptance = message.measures[3];
  return progress;
}

}  // namespace percheron
