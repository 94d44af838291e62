// What the supervisor does when workers come and go.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "actors/run_supervisor.h"
#include "base/units.h"

namespace percheron {

// --- losses --------------------------------------------------------------------------------------

void RunSupervisor::worker_lost(WorkerKind kind, int number) {
  touch();
  if (finished_ || !roll_.lost(kind, number)) return;
  observer_.on_event(fmt::format("{} {} {}", worker_kind_name(kind), number,
                                 roll_.retired(kind, number) ? "has left" : "is lost"));
  note_absence(kind);
  if (kind == WorkerKind::kTrainer) {
    trainers_[number].holds.clear();
    trainer_lost(number);
  } else {
    targets_.erase(number);
    for (auto& [epoch, termination] : epochs_) termination.target_lost(number);
    orders_.target_lost(number);
  }
  if (finished_) return;
  tell_workers();
  tell_state();
}

void RunSupervisor::trainer_lost(int number) {
  newcomers_.erase(number);
  if (join_) join_->left(number);
  const StepLedger::Loss loss = ledger_.member_lost(number);
  if (loss != StepLedger::Loss::kNothing) members_changed();
  switch (loss) {
    case StepLedger::Loss::kNothing: return settle_join();
    case StepLedger::Loss::kNobody: return nobody_left();
    case StepLedger::Loss::kRecompute: step_samples_ = 0; break;
    case StepLedger::Loss::kCommitted:
    case StepLedger::Loss::kStepOver: break;
  }
  replace_lost_evaluator(number);
  replace_lost_source(number);
  settle_join();
  if (finished_) return;
  if (loss == StepLedger::Loss::kStepOver) return all_applied(ledger_.step() - 1);
  if (!opened_) boundary();
}

void RunSupervisor::members_changed() {
  ++membership_changes_;
  suspicion_.reset();
  // Leases of the membership before are counted no more.
  for (auto& [number, termination] : epochs_) termination.leases_dropped();
  for (auto& [number, trainer] : trainers_) trainer.holds.clear();
  const std::vector<int>& members = ledger_.members();
  meter_.set_trainers(static_cast<int>(members.size()), now());
  regrouping_ = {members.begin(), members.end()};
  orders_.regroup(members, ledger_.membership());
}

void RunSupervisor::replace_lost_evaluator(int number) {
  if (!evaluation_ || evaluation_->left.count(number) == 0) return;
  observer_.on_event(fmt::format("the evaluation of step {} begins again without trainer {}",
                                 evaluation_->step, number));
  begin_evaluation(evaluation_->step);
}

void RunSupervisor::replace_lost_source(int number) {
  if (!checkpoint_ || checkpoint_->from != number) return;
  // Whoever writes it tells the end.
  if (checkpoint_->copied && checkpoint_->measured) return;
  // Until the next step is applied every member has the same parameters. An evaluation, which the
  // checkpoint may wait for, puts that off.
  const bool applying = ledger_.phase() == StepLedger::Phase::kApplying && !apply_waits_;
  if (ledger_.step() != checkpoint_->step || applying) {
    CheckpointReport report;
    report.step = checkpoint_->step;
    report.error = "the trainer that copied it is gone";
    return checkpoint_written(report, unavailable(report.error));
  }
  checkpoint_->copied = false;  // Where trainers are processes the copy is gone, too.
  checkpoint_->from = ledger_.members().front();
  orders_.snapshot(checkpoint_->from, checkpoint_->step);
}

void RunSupervisor::nobody_left() {
  const int64_t step = ledger_.step();
  const bool being_written = checkpoint_ && checkpoint_->copied && checkpoint_->measured;
  const bool kept = is_saved(step) || (being_written && checkpoint_->step == step);
  if (step == setup_.steps.steps() && kept && !evaluation_) return;  // They are needed no more.
  rewind_ = true;
  apply_waits_ = false;
  evaluation_.reset();
  join_.reset();
  if (!being_written) checkpoint_.reset();
}

void RunSupervisor::node_lost(int node) {
  touch();
  if (finished_) return;
  observer_.on_event(fmt::format("the features on node {} are lost: they are made again", node));
  targets_done_ = false;
  orders_.node_lost(node);
}

void RunSupervisor::queued_again(WorkerKind lost, int64_t micro_batches) {
  touch();
  (lost == WorkerKind::kTarget ? requeued_ : recomputed_) += micro_batches;
  if (lost == WorkerKind::kTarget) targets_done_ = false;
  if (!finished_) tell_workers();
}

void RunSupervisor::regrouped(int trainer, int64_t membership) {
  touch();
  if (membership == ledger_.membership()) regrouping_.erase(trainer);
}

void RunSupervisor::reduce_failed(int trainer, int64_t step, int64_t membership,
                                  const Status& status) {
  touch();
  if (finished_ || membership != ledger_.membership() || suspicion_) return;
  suspicion_ = Suspicion{membership, trainer, now(), status};
  observer_.on_event(
      fmt::format("trainer {} could not {}: {}", trainer,
                  step < 0 ? std::string("join the others") : fmt::format("reduce step {}", step),
                  status.message()));
}

// --- trainers that come --------------------------------------------------------------------------

void RunSupervisor::worker_ready(WorkerKind kind, int number) {
  touch();
  if (finished_) return;
  if (!roll_.ready(kind, number)) {
    if (roll_.known(kind, number)) return;
    observer_.on_event(
        fmt::format("{} {} has no place in this run", worker_kind_name(kind), number));
    return;
  }
  observer_.on_event(fmt::format("{} {} is ready", worker_kind_name(kind), number));
  note_absence(kind);
  if (kind == WorkerKind::kTarget) {
    orders_.target_ready(number);
  } else {
    newcomers_.insert(number);
    if (rewind_) {
      try_rewind();
    } else if (!opened_ && !join_) {
      boundary();
    }
  }
  if (finished_) return;
  tell_workers();
  tell_state();
}

bool RunSupervisor::wants_join() const {
  return !newcomers_.empty() && !stopping_ && !join_waits_for_due_ &&
         ledger_.step() < setup_.steps.steps();
}

bool RunSupervisor::joining(int64_t step) {
  if (join_) return true;
  if (!wants_join()) return false;
  if (checkpoint_) return true;  // checkpoint_written() comes back here.
  if (!is_saved(step)) {
    join_waits_for_due_ = true;
    observer_.on_event(fmt::format("trainers {} wait for the next checkpoint that can be written",
                                   fmt::join(newcomers_, ", ")));
    return false;
  }
  const std::vector<int>& members = ledger_.members();
  join_.emplace(step, newcomers_, std::set<int>(members.begin(), members.end()));
  join_since_ = now();
  join_round_ = ++rounds_;
  orders_.restore({newcomers_.begin(), newcomers_.end()}, step, saved_.path, join_round_);
  orders_.restore(members, step, "", join_round_);
  return true;
}

void RunSupervisor::try_rewind() {
  if (!rewind_ || finished_ || join_ || checkpoint_ || newcomers_.empty()) return;
  const RunProgress& to = saved_.progress;
  ++rewinds_;
  observer_.on_event(fmt::format("no trainer was left: going back from step {} to {}",
                                 ledger_.step(),
                                 saved_.path.empty() ? "the initial parameters" : saved_.path));
  ledger_.restart(to.step);
  progress_ = to;
  first_step_ = to.step;
  epochs_.clear();
  epochs_done_ = setup_.steps.begin(to.step).epoch;
  asked_at_ = saved_at_ = saved_.path.empty() ? -1 : to.step;
  best_ = BestPolicy();
  if (to.best_step) best_.restore(*to.best_step, to.best_acceptance);
  simulated_sum_ = 0;
  simulated_steps_ = step_samples_ = 0;
  applied_.clear();
  opened_ = targets_done_ = rewound_ = false;
  orders_.rewind(to.step);
  join_.emplace(to.step, newcomers_, std::set<int>());
  join_since_ = now();
  join_round_ = ++rounds_;
  orders_.restore({newcomers_.begin(), newcomers_.end()}, to.step, saved_.path, join_round_);
}

void RunSupervisor::rewound(int64_t step) {
  touch();
  if (finished_ || !rewind_ || step != ledger_.step()) return;
  rewound_ = true;
  settle_join();
}

void RunSupervisor::restored(int trainer, int64_t round, uint32_t checksum, const Status& status) {
  touch();
  if (finished_ || !join_ || round != join_round_ || join_->missing().count(trainer) == 0) return;
  if (status.ok()) {
    join_->restored(trainer, checksum);
  } else if (newcomers_.count(trainer) != 0) {
    leave_out(trainer, status.message());
  } else {
    return failed(fmt::format("trainer {}", trainer), status);
  }
  settle_join();
}

void RunSupervisor::leave_out(int trainer, const std::string& why) {
  observer_.on_event(
      fmt::format("trainer {} stays out until it is started again: {}", trainer, why));
  newcomers_.erase(trainer);
  if (join_) join_->left(trainer);
  roll_.lost(WorkerKind::kTrainer, trainer);
  note_absence(WorkerKind::kTrainer);
}

void RunSupervisor::settle_join() {
  if (finished_ || !join_ || !join_->missing().empty() || !rewound_) return;
  const JoinRound::Verdict verdict = join_->verdict();
  join_.reset();
  if (verdict.members_differ) {
    finish(
        internal_error(fmt::format("{}: the trainers' parameters differ", where(ledger_.step()))));
    return;
  }
  for (int trainer : verdict.refused) {
    leave_out(trainer, "its parameters differ from the others' after it has restored them");
  }
  for (int trainer : verdict.admitted) {
    PERCHERON_CHECK(ledger_.member_joined(trainer), "a newcomer joins between two steps");
    newcomers_.erase(trainer);
  }
  if (!verdict.admitted.empty()) {
    let_leavers_go();  // Whom a newcomer replaces never computes beside it.
    members_changed();
    rewind_ = false;
    observer_.on_event(fmt::format("trainers {} compute from step {} on",
                                   fmt::join(verdict.admitted, ", "), ledger_.step()));
  }
  tell_workers();
  tell_state();
  if (rewind_) return try_rewind();
  if (!opened_) boundary();
}

// --- workers that are placed elsewhere -----------------------------------------------------------

void RunSupervisor::worker_added(WorkerKind kind, int number, int node, const std::string& device) {
  touch();
  if (finished_) return;
  PERCHERON_CHECK(roll_.add(kind) == number, "workers are numbered in the order of their coming");
  devices_[kind].push_back(device);
  observer_.on_event(fmt::format("{} {} is added on {}", worker_kind_name(kind), number, device));
  orders_.worker_added(kind, number, node);
}

void RunSupervisor::worker_retired(WorkerKind kind, int number) {
  touch();
  if (finished_ || !roll_.retire(kind, number)) return;
  observer_.on_event(fmt::format("{} {} is to leave", worker_kind_name(kind), number));
  orders_.worker_retired(kind, number);
  const std::vector<int>& members = ledger_.members();
  const bool member = std::find(members.begin(), members.end(), number) != members.end();
  if (kind == WorkerKind::kTrainer && !member) {
    worker_lost(kind, number);
  } else if (kind == WorkerKind::kTrainer && !opened_ && !join_) {
    boundary();
  }
  if (!finished_) tell_workers();
}

bool RunSupervisor::leaving() {
  if (let_leavers_go()) {
    members_changed();
    tell_workers();
  }
  return leave_waits_;
}

bool RunSupervisor::let_leavers_go() {
  leave_waits_ = false;
  std::vector<int> leavers;
  for (int member : ledger_.members()) {
    if (roll_.retired(WorkerKind::kTrainer, member)) leavers.push_back(member);
  }
  // The last one stays until another has come.
  if (leavers.empty() || leavers.size() == ledger_.members().size()) return false;
  for (int trainer : leavers) {
    const bool measures = evaluation_ && evaluation_->left.count(trainer) != 0;
    leave_waits_ = leave_waits_ || measures || (checkpoint_ && checkpoint_->from == trainer);
  }
  if (leave_waits_) return false;  // evaluated() and checkpoint_written() come back here.
  for (int trainer : leavers) {
    roll_.lost(WorkerKind::kTrainer, trainer);
    // Nothing of the step is computed yet, so nothing is computed again.
    ledger_.member_lost(trainer);
    observer_.on_event(fmt::format("trainer {} has left before step {}", trainer, ledger_.step()));
  }
  return true;
}

// --- waits ---------------------------------------------------------------------------------------

bool RunSupervisor::needs(WorkerKind kind) const {
  if (kind == WorkerKind::kTrainer) return rewind_;
  return !targets_done_ && ledger_.step() < setup_.steps.steps();
}

void RunSupervisor::note_absence(WorkerKind kind) {
  if (!roll_.there(kind).empty()) {
    absent_since_.erase(kind);
    return;
  }
  if (absent_since_.emplace(kind, now()).second) {
    observer_.on_event(fmt::format("no {} is left: one may come back within {}",
                                   worker_kind_name(kind),
                                   format_duration(settings_.worker_wait_seconds)));
  }
}

void RunSupervisor::check_waits() {
  for (const auto& [kind, since] : absent_since_) {
    if (!needs(kind) || now() - since <= settings_.worker_wait_seconds) continue;
    finish(unavailable(fmt::format(
        "no {} came back within {}; {}", worker_kind_name(kind),
        format_duration(settings_.worker_wait_seconds),
        saved_.path.empty() ? std::string("nothing was saved")
                            : "the same run goes on from its last checkpoint, " + saved_.path)));
    return;
  }
  if (suspicion_ && now() - suspicion_->since > settings_.death_seen_seconds) {
    failed(
        fmt::format("trainer {}", suspicion_->trainer),
        suspicion_->status.with_context(fmt::format(
            "no worker was found dead within {}", format_duration(settings_.death_seen_seconds))));
    return;
  }
  if (!join_ || now() - join_since_ <= settings_.worker_wait_seconds) return;
  const std::set<int> missing = join_->missing();
  for (int trainer : missing) {
    if (newcomers_.count(trainer) != 0) leave_out(trainer, "it does not restore in time");
  }
  settle_join();
}

void RunSupervisor::tell_workers() {
  WorkersReport report;
  report.targets = roll_.there(WorkerKind::kTarget);
  report.trainers = ledger_.members();
  report.membership = ledger_.membership();
  report.membership_changes = membership_changes_;
  report.requeued = requeued_;
  report.recomputed = recomputed_;
  observer_.on_workers(report);
}

void RunSupervisor::worker_failed(WorkerKind kind, int number, const std::string& who,
                                  const Status& status) {
  if (!finished_ && roll_.known(kind, number) && !roll_.there(kind, number)) {
    observer_.on_event(fmt::format("{}, which is lost, said: {}", who, status.message()));
    return;
  }
  failed(who, status);
}

}  // namespace percheron
