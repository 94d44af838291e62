#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/observer.h"
#include "actors/policy/epoch_termination.h"
#include "actors/policy/join_round.h"
#include "actors/policy/number_map.h"
#include "actors/policy/run_activity.h"
#include "actors/policy/run_schedule.h"
#include "actors/policy/step_ledger.h"
#include "actors/policy/worker_roll.h"
#include "actors/run_checkpoint.h"
#include "actors/run_control.h"
#include "actors/run_meter.h"
#include "actors/run_setup.h"
#include "base/clock.h"
#include "model/drafter.h"
#include "model/speculative.h"

namespace percheron {

/// What the supervisor tells the other actors.
/// What a member has to answer bears a round, and the answer too: a later round takes the place of
/// an earlier one, and what a dead worker has still answered to that counts no more.
class RunOrders {
 public:
  using Trainers = std::vector<int>;

  virtual ~RunOrders() = default;
  virtual void open_step(const PlannedStep& step) = 0;  // to the mailbox
  virtual void reduce(const Trainers& members, int64_t step, int64_t membership) = 0;
  virtual void commit(int64_t step) = 0;  // to the mailbox
  virtual void apply(const Trainers& members, int64_t step, bool checksum, int64_t round) = 0;
  virtual void evaluate(const Trainers& members, int64_t step, int64_t round) = 0;
  virtual void snapshot(int trainer, int64_t step) = 0;
  /// To the mailbox and the members: they reduce together from now on.
  virtual void regroup(const Trainers& members, int64_t membership) = 0;
  /// To trainers: tell your checksum, after going on from `checkpoint` unless it is empty.
  virtual void restore(const Trainers& trainers, int64_t step, const std::string& checkpoint,
                       int64_t round) = 0;
  virtual void target_lost(int target) = 0;                              // to the sampler
  virtual void target_ready(int target) = 0;                             // to the sampler
  virtual void worker_added(WorkerKind kind, int number, int node) = 0;  // to sampler and mailbox
  /// To sampler and mailbox. Once a target has nothing left to do, the supervisor is told that it
  /// is lost.
  virtual void worker_retired(WorkerKind kind, int number) = 0;
  virtual void node_lost(int node) = 0;   // to the sampler and then the mailbox
  virtual void rewind(int64_t step) = 0;  // to the sampler and then the mailbox
  /// The snapshot of `step` to disk; `prove`: read back and compared before it counts as written.
  virtual void write_checkpoint(int64_t step, const RunProgress& progress, bool prove) = 0;
  virtual void mark_best(int64_t step) = 0;
  /// The run is over; nothing is ordered after this.
  virtual void finish(const Status& status) = 0;
};

struct SupervisorSettings {
  std::shared_ptr<const RunSetup> setup;
  std::string resumed_from;      // a checkpoint; empty = a new run
  RunProgress progress;          // where the run goes on from
  double stall_seconds = 3600;   // without a word from anyone, the run ends
  int64_t checksum_steps = 100;  // trainers' parameters are compared every so many steps
  double worker_wait_seconds =
      300;                         // without any target, or trainer, the run waits so long for one
  double death_seen_seconds = 30;  // a reduction fails because a member is dead: known within this
};

/// What a trainer reports about an applied step.
struct AppliedReport {
  int trainer = 0;
  StepSums sums;  // of the whole step
  AppliedStep applied;
  std::optional<uint32_t> checksum;
  double seconds = 0;
  int64_t round = 0;
};

/// What the store and the mailbox held when a step ended.
struct PoolState {
  uint64_t bytes = 0, bytes_max = 0, bytes_peak = 0, cached_bytes = 0;
};

/// Every decision of a run that concerns more than one actor: steps, evaluations, checkpoints, the
/// end. One thread at a time; the supervisor actor is its shell.
class RunSupervisor {
 public:
  /// All references are borrowed.
  RunSupervisor(SupervisorSettings settings, RunOrders& orders, RunObserver& observer,
                const Clock& clock);

  /// Everybody is there. Without held-out data training begins at once, else held_out_ready() does.
  void start();
  void held_out_ready();

  void target_work(int target, MicroBatchId id, bool leased, int64_t tokens, double seconds);
  struct TrainerReport {
    int trainer = 0;
    MicroBatchId id;
    bool leased = false;  // else computed
    int64_t tokens = 0, samples = 0;
    double seconds = 0;
    int64_t steals = 0;  // of the run so far
    int64_t membership = 0;
  };
  void trainer_work(const TrainerReport& report);
  void epoch_exhausted(int64_t epoch);

  void step_computed(int64_t step, int64_t membership);
  void reduced(int trainer, int64_t step, int64_t membership, double seconds);
  void applied(int64_t step, const AppliedReport& report, const PoolState& pool);
  void evaluated(int trainer, int64_t round, const WalkCounts& counts, double seconds);
  void snapshot_taken(int64_t step, double seconds);
  void checkpoint_written(const CheckpointReport& report, const Status& status);
  void failed(const std::string& who, const Status& status);
  /// The last words of a worker that is lost already are no news.
  void worker_failed(WorkerKind kind, int number, const std::string& who, const Status& status);

  // Workers that come and go. Each may be told twice.
  void worker_lost(WorkerKind kind, int number);
  void worker_ready(WorkerKind kind, int number);
  /// The run has one more worker, with the next number, which is ready later.
  void worker_added(WorkerKind kind, int number, int node, const std::string& device);
  /// The worker is to leave for good: a target when its micro-batch is made, a trainer between two
  /// steps, once others are there.
  void worker_retired(WorkerKind kind, int number);
  void node_lost(int node);
  void queued_again(WorkerKind lost, int64_t micro_batches);
  void regrouped(int trainer, int64_t membership);
  /// Not the end where a member is dead: that is known within death_seen_seconds.
  void reduce_failed(int trainer, int64_t step, int64_t membership, const Status& status);
  void restored(int trainer, int64_t round, uint32_t checksum, const Status& status);
  /// Sampler and mailbox have forgotten what came after the step.
  void rewound(int64_t step);

  /// What the operator wants; answered by RunObserver::on_state and on_checkpoint.
  void order(RunOrder order);
  /// Now and then: looks for signals (how many the operator has sent) and for a standstill.
  void tick(int signals);

  bool finished() const { return finished_; }
  /// Trainers measure the held-out data, which may take long.
  bool evaluating() const { return evaluation_.has_value(); }
  /// The run has such a worker, and it is not lost.
  bool there(WorkerKind kind, int number) const { return roll_.there(kind, number); }
  /// Leases of this membership are not taken back yet.
  bool counts(int64_t membership) const { return membership == ledger_.membership(); }
  /// The run has a place for such a worker, which is lost.
  bool away(WorkerKind kind, int number) const {
    return roll_.known(kind, number) && !roll_.there(kind, number);
  }
  RunState state() const;
  /// What the run is at, for those who watch it.
  RunPhase phase() const;
  RunSummary summary() const;

 private:
  struct PendingCheckpoint {
    int64_t step = 0;
    RunProgress progress;
    BestPolicy best_before;  // to go back to if it can't be written
    int from = 0;            // the trainer whose parameters are copied
    bool copied = false;     // the snapshot is in host memory
    bool measured = false;   // the evaluation that it waits for is done
  };
  struct PendingEvaluation {
    int64_t step = 0;
    int64_t round = 0;
    std::set<int> left = {};  // trainers that have not reported
    WalkCounts counts;
    double seconds = 0;
  };
  // What a run can go back to.
  struct Saved {
    std::string path;  // empty: the initial parameters
    RunProgress progress;
  };
  // A reduction that failed, while no death is known.
  struct Suspicion {
    int64_t membership = 0;
    int trainer = 0;
    double since = 0;
    Status status;
  };
  struct Worker {
    void takes(MicroBatchId id, double now);
    /// `in_turn`: with all that it was given before.
    void settles(MicroBatchId id, bool in_turn, double now);

    std::vector<MicroBatchId> holds = {};  // the first is the one that it is at
    double since = 0;                      // when it came to that one
    int64_t micro_batches = 0;             // that it has settled
  };

  double now() const { return static_cast<double>(clock_.monotonic_ns()) * 1e-9; }
  void touch() { last_word_ = now(); }
  /// The parameters contain ledger_.step() steps: orders what is due, then opens the next step.
  void boundary();
  /// What is due at the boundary before `step`; false when it has to wait for the disk.
  bool order_due(int64_t step);
  void begin_evaluation(int64_t step);
  void apply_step();
  void try_finish();
  void try_write();
  bool is_saved(int64_t step) const { return !saved_.path.empty() && saved_.progress.step == step; }
  void stop();

  // --- members, in run_supervisor_members.cc
  void trainer_lost(int number);
  void replace_lost_evaluator(int number);
  void replace_lost_source(int number);
  void members_changed();
  void nobody_left();
  void try_rewind();
  bool wants_join() const;
  /// True while the boundary has to wait for trainers that come.
  bool joining(int64_t step);
  void settle_join();
  /// True while the boundary has to wait for what trainers that leave have under way.
  bool leaving();
  /// Takes those out of the members that leave and have nothing under way; true if there were any.
  bool let_leavers_go();
  void leave_out(int trainer, const std::string& why);
  void check_waits();
  void note_absence(WorkerKind kind);
  bool needs(WorkerKind kind) const;
  void tell_workers();
  void tell_state();
  void finish(const Status& status);
  void all_applied(int64_t step);
  void end_step(int64_t step);
  void count_committed_step(const PlannedStep& step);
  void report_step(const PlannedStep& step, const PoolState& pool);
  void report_epoch_ends();
  /// progress_ with the time until now.
  RunProgress progress() const;
  /// Without held-out data the best checkpoint is the one after the best training steps.
  void rank_by_training();
  EpochTermination& epoch(int64_t number);
  std::string where(int64_t step) const;
  std::string standstill() const;

  SupervisorSettings settings_;
  const RunSetup& setup_;
  RunOrders& orders_;
  RunObserver& observer_;
  const Clock& clock_;

  StepLedger ledger_;
  EvaluationPolicy evaluation_policy_;
  CheckpointPolicy checkpoint_policy_;
  StopPolicy stop_policy_;
  BestPolicy best_;
  RunMeter meter_;
  RunProgress progress_;
  Saved saved_;         // the newest checkpoint
  int64_t first_step_;  // that was or is computed since the start, or since the run went back
  WorkerRoll roll_;
  std::set<int> newcomers_;  // trainers that are there and no members
  std::optional<JoinRound> join_;
  int64_t join_round_ = 0, apply_round_ = 0, rounds_ = 0;
  double join_since_ = 0;
  bool leave_waits_ = false;                                // the boundary waits in leaving()
  std::map<WorkerKind, std::vector<std::string>> devices_;  // of each worker, for people
  bool join_waits_for_due_ = false;  // the checkpoint for a join failed: until the next due one
  std::map<WorkerKind, double> absent_since_;  // no worker of the kind is there
  std::optional<Suspicion> suspicion_;
  std::set<int> regrouping_;  // members that have not said that they are in the group
  bool rewind_ = false;       // no trainer is left: the run goes back to saved_
  bool rewound_ = true;       // sampler and mailbox have gone back, too
  std::map<int64_t, EpochTermination> epochs_;
  std::vector<AppliedReport> applied_;  // of the step that is being applied
  std::optional<PendingCheckpoint> checkpoint_;
  std::optional<PendingEvaluation> evaluation_;
  NumberMap<Worker> targets_, trainers_;

  bool held_out_ready_ = false;
  bool stopping_ = false, finished_ = false;
  bool pausing_ = false, save_wanted_ = false;
  bool targets_done_ = false;  // nothing is left to be produced
  bool apply_waits_ = false;   // the step is committed, and applied after the evaluation
  PoolState pool_;             // when a trainer last applied
  std::optional<RunState> told_state_;
  bool opened_ = false;         // the ledger's step is open
  bool opened_before_ = false;  // a step was opened
  int64_t asked_at_ = -1;       // the last boundary at which what is due was ordered
  int64_t saved_at_ = -1;       // the last one at which a checkpoint was ordered
  double started_ = 0, last_word_ = 0;
  double simulated_sum_ = 0;  // since the last checkpoint
  int64_t simulated_steps_ = 0;
  int64_t epochs_done_ = 0, checkpoint_failures_ = 0;
  uint64_t pool_peak_ = 0;
  Status last_checkpoint_status_;
  std::string latest_checkpoint_, best_checkpoint_;
  int64_t step_samples_ = 0;
  int64_t membership_changes_ = 0, requeued_ = 0, recomputed_ = 0, rewinds_ = 0;
};

}  // namespace percheron
