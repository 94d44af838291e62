#pragma once

// What the actors of one run tell each other. Messages name micro-batches and never carry tensors:
// features stay in the node's store. None is near the limit of 64 KiB.

#include <cstdint>
#include <string>
#include <vector>

#include "actors/compat.h"
#include "actors/message_values.h"
#include "actors/policy/worker_roll.h"
#include "actors/run_control.h"

namespace percheron {

// --- sampler and targets -------------------------------------------------------------------------

/// Supervisor to sampler and to targets: begin.
struct Begin {
  int64_t step = 0;
};
/// Target to sampler: I am idle.
struct TargetIdle {
  int32_t target = 0;
};
/// Sampler to target: make the features of this micro-batch.
struct Produce {
  MicroBatchId id;
  int64_t step = 0;
  int64_t lease = 0;
  int64_t generation = 0;
  uint64_t bytes = 0;
};
/// Target to sampler: the features are in the store, or could not be made.
struct Produced {
  int32_t target = 0;
  Produce work;
  int64_t tokens = 0;   // that were computed; the others came from the cache
  int64_t samples = 0;  // of the micro-batch
  double seconds = 0;
  Outcome outcome;
  uint64_t region_bytes = 0;  // of the features, where they are for other processes; else 0
  uint32_t crc32c = 0;        // of the region
};
/// Target of another process to supervisor: a sample was set aside.
struct SetAside {
  bool held_out = false;
  int64_t sample = 0;
  std::string reason;
};
/// Sampler to supervisor: a micro-batch was leased to, or settled by, a target.
struct TargetWork {
  int32_t target = 0;
  MicroBatchId id;
  bool leased = false;
  int64_t tokens = 0;
  double seconds = 0;
};
/// Sampler to supervisor: nothing of this epoch is left to hand out; its targets are done.
struct EpochExhausted {
  int64_t epoch = 0;
};

// --- mailbox and trainers ------------------------------------------------------------------------

/// Sampler to mailbox.
struct PutTicket {
  Ticket ticket;
};
/// Trainer to mailbox: I have begun, and am given tickets from now on.
struct Take {
  int32_t trainer = 0;
};
/// Mailbox to trainer.
struct TakeTicket {
  Ticket ticket;
  int64_t lease = 0;
  int64_t membership = 0;  // whose sums it belongs to
  bool in_order = false;   // it is to be added behind those of a lower index
};
/// Trainer to mailbox: the features could not be read, for their node does not give them.
struct Unreadable {
  int32_t trainer = 0;
  MicroBatchId id;
  int64_t lease = 0;
};
/// Sampler to every trainer: held-out features, to be kept for evaluations.
struct KeepHeldOut {
  Ticket ticket;
};
/// Trainer to mailbox: the step's sums contain this micro-batch.
struct Computed {
  int32_t trainer = 0;
  MicroBatchId id;
  int64_t lease = 0;
  int64_t tokens = 0;
  int64_t samples = 0;
  double seconds = 0;
  double fetch_seconds = 0;  // in which it had nothing to compute but waited for the features
};
/// Mailbox to supervisor: a ticket was leased to, or computed by, a trainer.
struct TrainerWork {
  /// Of work that counts no more: all that the trainer held was taken away.
  static constexpr int64_t kNoMembership = -1;

  int32_t trainer = 0;
  MicroBatchId id;
  bool leased = false;
  int64_t tokens = 0;
  int64_t samples = 0;
  double seconds = 0;
  int64_t steals = 0;  // of the run so far
  int64_t membership = 0;
  bool ahead = false;  // leased beside what the trainer computes
};

// --- steps ---------------------------------------------------------------------------------------

/// Supervisor to mailbox.
struct OpenStep {
  PlannedStep range;
};
/// Mailbox to supervisor: every micro-batch of the step is computed.
struct StepComputed {
  int64_t step = 0;
  int64_t membership = 0;
};
/// Supervisor to trainers.
struct Reduce {
  int64_t step = 0;
  int64_t membership = 0;
};
/// Trainer to supervisor: the group could not be formed or could not reduce.
struct ReduceFailed {
  int32_t trainer = 0;
  int64_t step = 0;  // -1 when the group was not formed
  int64_t membership = 0;
  Outcome outcome;
};
/// Trainer to supervisor: I hold the sums over all trainers.
struct Reduced {
  int32_t trainer = 0;
  int64_t step = 0;
  int64_t membership = 0;
  double seconds = 0;
};
/// Supervisor to mailbox: the step survives any death now.
struct Commit {
  int64_t step = 0;
};
/// Mailbox to sampler: the features of these micro-batches are freed.
struct Freed {
  PlannedStep range;
  int64_t rewinds = 0;  // as far as the mailbox knows
};
/// Supervisor to trainers.
struct Apply {
  int64_t step = 0;
  bool checksum = false;
  int64_t round = 0;  // of this order, which its answer names
};
/// Trainer to supervisor: my parameters contain the step. `sums` are those of the whole step, as
/// encode_sums() lays them out.
struct Applied {
  int32_t trainer = 0;
  int64_t step = 0;
  std::vector<double> sums;
  double gradient_norm = 0;
  double rate_factor = 0;
  bool skipped = false;
  bool has_checksum = false;
  uint32_t checksum = 0;
  double seconds = 0;
  int64_t round = 0;
};

// --- evaluation and checkpoints ------------------------------------------------------------------

/// Supervisor to trainers: measure the held-out micro-batches first, first + stride, ... A later
/// round, after a death, takes the place of an earlier one.
struct Evaluate {
  int64_t step = 0;
  int64_t round = 0;
  int64_t first = 0;
  int64_t stride = 1;
};
struct Evaluated {
  int32_t trainer = 0;
  int64_t step = 0;
  int64_t round = 0;
  std::vector<int64_t> rounds;  // per draft length
  std::vector<int64_t> tokens;
  double seconds = 0;
};
/// Supervisor to one trainer: copy parameters and moments for a checkpoint.
struct TakeSnapshot {
  int64_t step = 0;
};
struct SnapshotTaken {
  int64_t step = 0;
  double seconds = 0;
};
/// Supervisor to the trainer that took the snapshot, where that is another process: write it, with
/// what the run remembers (encode_progress()); `prove`: read it back before it counts as written.
struct WriteCheckpoint {
  int64_t step = 0;
  std::vector<int64_t> counts;
  std::vector<double> measures;
  bool prove = false;
};
/// Checkpoint thread to supervisor.
struct CheckpointWritten {
  int64_t step = 0;
  std::string path;
  uint64_t bytes = 0;
  double seconds = 0;
  Outcome outcome;
};
/// Anyone to supervisor: this can't go on.
struct Failed {
  std::string who;
  Outcome outcome;
  WorkerKind kind = WorkerKind::kTarget;
  int32_t number = 0;
};

// --- workers that come and go --------------------------------------------------------------------
// A link passes on a worker's words up to its loss, and to a worker only what was sent since it was
// ready: what is meant for a dead one never reaches the one that takes its place.

/// Whoever watches the workers to supervisor, and supervisor to sampler: a worker is dead.
struct WorkerLost {
  WorkerKind kind = WorkerKind::kTarget;
  int32_t number = 0;
};
/// Likewise: it was started again, knows nothing and takes work.
struct WorkerReady {
  WorkerKind kind = WorkerKind::kTarget;
  int32_t number = 0;
};
/// Whoever placed it to supervisor, and supervisor to sampler and mailbox: the run has a place for
/// one more worker, with the next number. It takes work once it is ready.
struct WorkerAdded {
  WorkerKind kind = WorkerKind::kTarget;
  int32_t number = 0;
  int32_t node = 0;    // as tickets number them
  std::string device;  // for people
};
/// Likewise: it is to leave for good. It ends what it has, then the sampler says that it is lost.
struct WorkerRetired {
  WorkerKind kind = WorkerKind::kTarget;
  int32_t number = 0;
};
/// Whoever watches the nodes to supervisor, from there to sampler and on to mailbox, behind the
/// tickets that are under way: the features of this node are gone.
struct NodeLost {
  int32_t node = 0;
};
/// Mailbox to sampler: produce these again.
struct ProduceAgain {
  std::vector<MicroBatchId> ids;
  int64_t rewinds = 0;  // that the mailbox has gone back: what it lacked before is wanted no more
};
/// Sampler or mailbox to supervisor: so many micro-batches of a lost worker were queued again.
struct QueuedAgain {
  WorkerKind kind = WorkerKind::kTarget;  // that was lost
  int64_t micro_batches = 0;
};
/// Supervisor to mailbox and to the members: these are the trainers that reduce together now. What
/// they have summed of the open step counts no more.
struct Regroup {
  int64_t membership = 0;
  std::vector<int32_t> members;
};
/// Trainer to supervisor: I am in the group.
struct Regrouped {
  int32_t trainer = 0;
  int64_t membership = 0;
};
/// Supervisor to trainers at a step boundary: go on from this checkpoint, or from what you have if
/// the path is empty, and tell your parameters' checksum.
struct Restore {
  int64_t step = 0;
  std::string path;
  int64_t round = 0;
};
struct Restored {
  int32_t trainer = 0;
  int64_t step = 0;
  int64_t round = 0;
  uint32_t checksum = 0;
  Outcome outcome;
};
/// Supervisor to sampler, from there to mailbox, and from there back: the run goes back to `step`.
struct Rewind {
  int64_t step = 0;
  int64_t rewinds = 0;  // of the sampler so far
};
/// The operator to supervisor.
struct Steer {
  RunOrder order = RunOrder::kPause;
};

/// Supervisor to itself, now and then.
struct Tick {};

inline auto fields_of(Begin& x) { return std::tie(x.step); }
inline auto fields_of(TargetIdle& x) { return std::tie(x.target); }
inline auto fields_of(Produce& x) { return std::tie(x.id, x.step, x.lease, x.generation, x.bytes); }
inline auto fields_of(Produced& x) {
  return std::tie(x.target, x.work, x.tokens, x.samples, x.seconds, x.outcome, x.region_bytes,
                  x.crc32c);
}
inline auto fields_of(SetAside& x) { return std::tie(x.held_out, x.sample, x.reason); }
inline auto fields_of(TargetWork& x) {
  return std::tie(x.target, x.id, x.leased, x.tokens, x.seconds);
}
inline auto fields_of(EpochExhausted& x) { return std::tie(x.epoch); }
inline auto fields_of(PutTicket& x) { return std::tie(x.ticket); }
inline auto fields_of(Take& x) { return std::tie(x.trainer); }
inline auto fields_of(TakeTicket& x) {
  return std::tie(x.ticket, x.lease, x.membership, x.in_order);
}
inline auto fields_of(Unreadable& x) { return std::tie(x.trainer, x.id, x.lease); }
inline auto fields_of(KeepHeldOut& x) { return std::tie(x.ticket); }
inline auto fields_of(Computed& x) {
  return std::tie(x.trainer, x.id, x.lease, x.tokens, x.samples, x.seconds, x.fetch_seconds);
}
inline auto fields_of(TrainerWork& x) {
  return std::tie(x.trainer, x.id, x.leased, x.tokens, x.samples, x.seconds, x.steals, x.membership,
                  x.ahead);
}
inline auto fields_of(OpenStep& x) { return std::tie(x.range); }
inline auto fields_of(StepComputed& x) { return std::tie(x.step, x.membership); }
inline auto fields_of(Reduce& x) { return std::tie(x.step, x.membership); }
inline auto fields_of(ReduceFailed& x) {
  return std::tie(x.trainer, x.step, x.membership, x.outcome);
}
inline auto fields_of(Reduced& x) { return std::tie(x.trainer, x.step, x.membership, x.seconds); }
inline auto fields_of(Commit& x) { return std::tie(x.step); }
inline auto fields_of(Freed& x) { return std::tie(x.range, x.rewinds); }
inline auto fields_of(Apply& x) { return std::tie(x.step, x.checksum, x.round); }
inline auto fields_of(Applied& x) {
  return std::tie(x.trainer, x.step, x.sums, x.gradient_norm, x.rate_factor, x.skipped,
                  x.has_checksum, x.checksum, x.seconds, x.round);
}
inline auto fields_of(Evaluate& x) { return std::tie(x.step, x.round, x.first, x.stride); }
inline auto fields_of(Evaluated& x) {
  return std::tie(x.trainer, x.step, x.round, x.rounds, x.tokens, x.seconds);
}
inline auto fields_of(TakeSnapshot& x) { return std::tie(x.step); }
inline auto fields_of(SnapshotTaken& x) { return std::tie(x.step, x.seconds); }
inline auto fields_of(WriteCheckpoint& x) {
  return std::tie(x.step, x.counts, x.measures, x.prove);
}
inline auto fields_of(CheckpointWritten& x) {
  return std::tie(x.step, x.path, x.bytes, x.seconds, x.outcome);
}
inline auto fields_of(Failed& x) { return std::tie(x.who, x.outcome, x.kind, x.number); }
inline auto fields_of(WorkerLost& x) { return std::tie(x.kind, x.number); }
inline auto fields_of(WorkerReady& x) { return std::tie(x.kind, x.number); }
inline auto fields_of(WorkerAdded& x) { return std::tie(x.kind, x.number, x.node, x.device); }
inline auto fields_of(WorkerRetired& x) { return std::tie(x.kind, x.number); }
inline auto fields_of(NodeLost& x) { return std::tie(x.node); }
inline auto fields_of(ProduceAgain& x) { return std::tie(x.ids, x.rewinds); }
inline auto fields_of(QueuedAgain& x) { return std::tie(x.kind, x.micro_batches); }
inline auto fields_of(Regroup& x) { return std::tie(x.membership, x.members); }
inline auto fields_of(Regrouped& x) { return std::tie(x.trainer, x.membership); }
inline auto fields_of(Restore& x) { return std::tie(x.step, x.path, x.round); }
inline auto fields_of(Restored& x) {
  return std::tie(x.trainer, x.step, x.round, x.checksum, x.outcome);
}
inline auto fields_of(Rewind& x) { return std::tie(x.step, x.rewinds); }
inline auto fields_of(Steer& x) { return std::tie(x.order); }
inline auto fields_of(Tick&) { return std::tie(); }

PERCHERON_MESSAGE(Begin)
PERCHERON_MESSAGE(TargetIdle)
PERCHERON_MESSAGE(Produce)
PERCHERON_MESSAGE(Produced)
PERCHERON_MESSAGE(SetAside)
PERCHERON_MESSAGE(TargetWork)
PERCHERON_MESSAGE(EpochExhausted)
PERCHERON_MESSAGE(PutTicket)
PERCHERON_MESSAGE(Take)
PERCHERON_MESSAGE(TakeTicket)
PERCHERON_MESSAGE(KeepHeldOut)
PERCHERON_MESSAGE(Computed)
PERCHERON_MESSAGE(TrainerWork)
PERCHERON_MESSAGE(OpenStep)
PERCHERON_MESSAGE(StepComputed)
PERCHERON_MESSAGE(Reduce)
PERCHERON_MESSAGE(Reduced)
PERCHERON_MESSAGE(Commit)
PERCHERON_MESSAGE(Freed)
PERCHERON_MESSAGE(Apply)
PERCHERON_MESSAGE(Applied)
PERCHERON_MESSAGE(Evaluate)
PERCHERON_MESSAGE(Evaluated)
PERCHERON_MESSAGE(TakeSnapshot)
PERCHERON_MESSAGE(SnapshotTaken)
PERCHERON_MESSAGE(WriteCheckpoint)
PERCHERON_MESSAGE(CheckpointWritten)
PERCHERON_MESSAGE(Failed)
PERCHERON_MESSAGE(Unreadable)
PERCHERON_MESSAGE(ReduceFailed)
PERCHERON_MESSAGE(WorkerLost)
PERCHERON_MESSAGE(WorkerReady)
PERCHERON_MESSAGE(WorkerAdded)
PERCHERON_MESSAGE(WorkerRetired)
PERCHERON_MESSAGE(NodeLost)
PERCHERON_MESSAGE(ProduceAgain)
PERCHERON_MESSAGE(QueuedAgain)
PERCHERON_MESSAGE(Regroup)
PERCHERON_MESSAGE(Regrouped)
PERCHERON_MESSAGE(Restore)
PERCHERON_MESSAGE(Restored)
PERCHERON_MESSAGE(Rewind)
PERCHERON_MESSAGE(Steer)
PERCHERON_MESSAGE(Tick)

}  // namespace percheron

CAF_BEGIN_TYPE_ID_BLOCK(percheron_run, caf::first_custom_type_id)
CAF_ADD_TYPE_ID(percheron_run, (percheron::Begin))
CAF_ADD_TYPE_ID(percheron_run, (percheron::TargetIdle))
CAF_ADD_TYPE_ID(percheron_run, (percheron::Produce))
CAF_ADD_TYPE_ID(percheron_run, (percheron::Produced))
CAF_ADD_TYPE_ID(percheron_run, (percheron::SetAside))
CAF_ADD_TYPE_ID(percheron_run, (percheron::TargetWork))
CAF_ADD_TYPE_ID(percheron_run, (percheron::EpochExhausted))
CAF_ADD_TYPE_ID(percheron_run, (percheron::PutTicket))
CAF_ADD_TYPE_ID(percheron_run, (percheron::Take))
CAF_ADD_TYPE_ID(percheron_run, (percheron::TakeTicket))
CAF_ADD_TYPE_ID(percheron_run, (percheron::KeepHeldOut))
CAF_ADD_TYPE_ID(percheron_run, (percheron::Computed))
CAF_ADD_TYPE_ID(percheron_run, (percheron::TrainerWork))
CAF_ADD_TYPE_ID(percheron_run, (percheron::OpenStep))
CAF_ADD_TYPE_ID(percheron_run, (percheron::StepComputed))
CAF_ADD_TYPE_ID(percheron_run, (percheron::Reduce))
CAF_ADD_TYPE_ID(percheron_run, (percheron::Reduced))
CAF_ADD_TYPE_ID(percheron_run, (percheron::Commit))
CAF_ADD_TYPE_ID(percheron_run, (percheron::Freed))
CAF_ADD_TYPE_ID(percheron_run, (percheron::Apply))
CAF_ADD_TYPE_ID(percheron_run, (percheron::Applied))
CAF_ADD_TYPE_ID(percheron_run, (percheron::Evaluate))
CAF_ADD_TYPE_ID(percheron_run, (percheron::Evaluated))
CAF_ADD_TYPE_ID(percheron_run, (percheron::TakeSnapshot))
CAF_ADD_TYPE_ID(percheron_run, (percheron::SnapshotTaken))
CAF_ADD_TYPE_ID(percheron_run, (percheron::WriteCheckpoint))
CAF_ADD_TYPE_ID(percheron_run, (percheron::CheckpointWritten))
CAF_ADD_TYPE_ID(percheron_run, (percheron::Failed))
CAF_ADD_TYPE_ID(percheron_run, (percheron::Unreadable))
CAF_ADD_TYPE_ID(percheron_run, (percheron::ReduceFailed))
CAF_ADD_TYPE_ID(percheron_run, (percheron::WorkerLost))
CAF_ADD_TYPE_ID(percheron_run, (percheron::WorkerReady))
CAF_ADD_TYPE_ID(percheron_run, (percheron::WorkerAdded))
CAF_ADD_TYPE_ID(percheron_run, (percheron::WorkerRetired))
CAF_ADD_TYPE_ID(percheron_run, (percheron::NodeLost))
CAF_ADD_TYPE_ID(percheron_run, (percheron::ProduceAgain))
CAF_ADD_TYPE_ID(percheron_run, (percheron::QueuedAgain))
CAF_ADD_TYPE_ID(percheron_run, (percheron::Regroup))
CAF_ADD_TYPE_ID(percheron_run, (percheron::Regrouped))
CAF_ADD_TYPE_ID(percheron_run, (percheron::Restore))
CAF_ADD_TYPE_ID(percheron_run, (percheron::Restored))
CAF_ADD_TYPE_ID(percheron_run, (percheron::Rewind))
CAF_ADD_TYPE_ID(percheron_run, (percheron::Steer))
CAF_ADD_TYPE_ID(percheron_run, (percheron::Tick))
CAF_END_TYPE_ID_BLOCK(percheron_run)
