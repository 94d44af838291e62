#pragma once

// What the actors of one run know of each other, and how each is started. Only for the files that
// implement actors: CAF's headers compile slowly.

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "actors/compat.h"
#include "actors/feature_sources.h"
#include "actors/messages.h"
#include "actors/messages_reduce.h"
#include "actors/run_parts.h"
#include "actors/run_supervisor.h"

namespace percheron {

/// The targets or trainers of a run by their numbers. May grow while actors use it. Thread-safe.
class ActorList {
 public:
  /// Null where this process has none of this number.
  caf::actor operator[](int number) const {
    const std::lock_guard lock(mutex_);
    const auto index = static_cast<size_t>(number);
    return index < actors_.size() ? actors_[index] : caf::actor();
  }
  void set(int number, caf::actor actor) {
    const std::lock_guard lock(mutex_);
    const auto index = static_cast<size_t>(number);
    if (index >= actors_.size()) actors_.resize(index + 1);
    actors_[index] = std::move(actor);
  }
  /// Those that are not null.
  std::vector<caf::actor> all() const {
    const std::lock_guard lock(mutex_);
    std::vector<caf::actor> all;
    for (const caf::actor& actor : actors_) {
      if (actor) all.push_back(actor);
    }
    return all;
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    actors_.clear();
  }

 private:
  mutable std::mutex mutex_;
  std::vector<caf::actor> actors_;
};

/// The addresses of a run's actors; complete before the first message is sent. A target or trainer
/// that comes later is there before anybody is told of it.
struct Peers {
  caf::actor supervisor, sampler, mailbox;
  ActorList targets, trainers;

  /// Actors and addresses hold each other until this.
  void clear() {
    supervisor = sampler = mailbox = caf::actor();
    targets.clear();
    trainers.clear();
  }
};
using PeersPtr = std::shared_ptr<const Peers>;

/// Hands out micro-batches to targets and forwards their tickets to the mailbox.
caf::actor start_sampler(caf::actor_system& system, RunParts& parts, PeersPtr peers);
/// Keeps the tickets and hands them to trainers.
caf::actor start_mailbox(caf::actor_system& system, RunParts& parts, PeersPtr peers);
/// Makes features on its device.
caf::actor start_target(caf::actor_system& system, RunParts& parts, PeersPtr peers, int number);
/// Learns from features on its device.
caf::actor start_trainer(caf::actor_system& system, RunParts& parts, PeersPtr peers, int number);

/// What the supervisor needs beside the parts; borrowed.
struct SupervisorWorld {
  RunParts& parts;
  RunObserver& observer;  // not blocking: it hands on to a thread of its own
  WorkThread& disk;       // writes checkpoints
  const std::atomic<int>& stop_signals;
  SupervisorSettings settings;
  std::function<void(const Status&, const RunSummary&)> on_finish;  // called once
  // Ends the process of a worker that lives and does not answer; null where it has none of its own.
  std::function<void(WorkerKind, int number, const std::string& why)> end_worker;
  // Where the samples of targets that live elsewhere came from; null: `parts` knows.
  std::function<FeatureSources()> sources;
};
/// Decides; everybody reports to it. It monitors all others, so that the end of one ends the run.
caf::actor start_supervisor(caf::actor_system& system, SupervisorWorld world, PeersPtr peers);

/// Writes the snapshot that parts.snapshot holds. Blocks on disk.
CheckpointWritten write_snapshot(RunParts& parts, int64_t step, const RunProgress& progress,
                                 bool prove);
/// RunProgress as a message carries it.
void encode_progress(const RunProgress& progress, WriteCheckpoint& message);
Result<RunProgress> decode_progress(const WriteCheckpoint& message);

/// The targets and trainers of a run that live in other processes.
class RemoteWorkers {
 public:
  virtual ~RemoteWorkers() = default;
  /// Starts an actor for each and fills in peers->targets and peers->trainers; from now on their
  /// messages arrive at `peers`.
  virtual void start(caf::actor_system& system, const std::shared_ptr<Peers>& peers) = 0;
  /// One lives and does not answer: its process is ended. No effect where that has been replaced.
  virtual void end_worker(WorkerKind kind, int number, const std::string& why) = 0;
  /// Where the samples of their features came from.
  virtual FeatureSources sources() = 0;
  /// No message arrives after this.
  virtual void stop() = 0;
};

/// How an actor system of ours is set up.
struct ActorSystemConfig : caf::actor_system_config {
  ActorSystemConfig();
};

/// StepSums as a message carries them.
std::vector<double> encode_sums(const StepSums& sums, size_t positions);
StepSums decode_sums(const std::vector<double>& values);
/// Positions of the run's sums: TTT steps or slots of a block.
size_t sum_positions(const RunSetup& setup);

}  // namespace percheron
