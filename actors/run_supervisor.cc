#include "actors/run_supervisor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "actors/policy/epoch_text.h"
#include "base/units.h"
#include "data/checkpoint.h"

namespace percheron {
namespace {

std::vector<int> first_numbers(size_t count) {
  std::vector<int> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

double ratio(double sum, double count) { return count > 0 ? sum / count : 0; }

}  // namespace

RunSupervisor::RunSupervisor(SupervisorSettings settings, RunOrders& orders, RunObserver& observer,
                             const Clock& clock)
    : settings_(std::move(settings)),
      setup_(*settings_.setup),
      orders_(orders),
      observer_(observer),
      clock_(clock),
      ledger_(first_numbers(setup_.placement.trainers.size()), settings_.progress.step),
      evaluation_policy_(
          setup_.data.held_out != nullptr, setup_.config.evaluate().every_steps(),
          {setup_.config.evaluate().at_steps().begin(), setup_.config.evaluate().at_steps().end()},
          setup_.steps.steps()),
      checkpoint_policy_(setup_.config.checkpoint().every_steps(), setup_.steps.steps()),
      meter_(static_cast<int>(setup_.placement.trainers.size())),
      progress_(settings_.progress),
      saved_{settings_.resumed_from, settings_.progress},
      first_step_(settings_.progress.step),
      roll_(static_cast<int>(setup_.placement.target_groups().size()),
            static_cast<int>(setup_.placement.trainers.size())),
      epochs_done_(setup_.steps.begin(settings_.progress.step).epoch) {
  if (progress_.best_step) {
    best_.restore(*progress_.best_step, progress_.best_acceptance);
    best_checkpoint_ = join_path(setup_.output(), step_directory_name(*progress_.best_step));
  }
  for (const auto& group : setup_.placement.target_groups()) {
    devices_[WorkerKind::kTarget].push_back(to_string(group));
  }
  for (const DeviceId id : setup_.placement.trainers) {
    devices_[WorkerKind::kTrainer].push_back(to_string(id));
  }
  if (settings_.resumed_from.empty()) return;
  latest_checkpoint_ = settings_.resumed_from;
  asked_at_ = saved_at_ = progress_.step;  // Its evaluation and checkpoint exist.
}

void RunSupervisor::start() {
  started_ = now();
  touch();
  tell_state();
  if (ledger_.members().size() > 1) orders_.regroup(ledger_.members(), ledger_.membership());
  if (!setup_.data.held_out) return held_out_ready();
  observer_.on_event(
      fmt::format("computing the features of {} held-out samples, which are kept for the run",
                  format_count(setup_.data.held_out_selection.samples.size())));
}

void RunSupervisor::held_out_ready() {
  if (held_out_ready_ || finished_) return;
  held_out_ready_ = true;
  touch();
  boundary();
}

// --- work of targets and trainers ----------------------------------------------------------------

EpochTermination& RunSupervisor::epoch(int64_t number) {
  const auto known = epochs_.find(number);
  if (known != epochs_.end()) return known->second;
  const int64_t first = std::max(setup_.steps.first_step(number), first_step_);
  const int64_t end = number + 1 < setup_.steps.epochs()
                          ? std::min(setup_.steps.first_step(number + 1), setup_.steps.steps())
                          : setup_.steps.steps();
  return epochs_.emplace(number, EpochTermination(end - first, roll_.there(WorkerKind::kTarget)))
      .first->second;
}

void RunSupervisor::Worker::takes(MicroBatchId id, double now) {
  if (holds.empty()) since = now;
  holds.push_back(id);
}

void RunSupervisor::Worker::settles(MicroBatchId id, bool in_turn, double now) {
  const auto settled = std::ranges::find(holds, id);
  if (settled == holds.end()) return;
  if (in_turn || settled == holds.begin()) since = now;
  holds.erase(in_turn ? holds.begin() : settled, settled + 1);
}

void RunSupervisor::target_work(int target, MicroBatchId id, bool leased, int64_t tokens,
                                double seconds) {
  touch();
  Worker& worker = targets_[target];
  if (leased) return worker.takes(id, last_word_);
  worker.settles(id, true, last_word_);
  meter_.target_worked(tokens, seconds);
}

void RunSupervisor::trainer_work(const TrainerReport& report) {
  touch();
  if (!report.leased) meter_.trainer_worked(report.tokens, report.seconds);
  progress_.steals = settings_.progress.steals + report.steals;
  if (report.membership != ledger_.membership()) return;  // It counts no more.
  Worker& trainer = trainers_[report.trainer];
  EpochTermination& termination = epoch(report.id.epoch);
  if (report.leased) {
    trainer.takes(report.id, last_word_);
    termination.leased();
  } else {
    trainer.settles(report.id, false, last_word_);
    termination.settled();
    ++trainer.micro_batches;
    step_samples_ += report.samples;
    report_epoch_ends();
  }
}

void RunSupervisor::epoch_exhausted(int64_t number) {
  touch();
  if (number < 0) return;  // held-out data
  EpochTermination& termination = epoch(number);
  for (int target = 0; target < roll_.places(WorkerKind::kTarget); ++target) {
    termination.target_done(target);
  }
  targets_done_ = number == setup_.steps.at(setup_.steps.steps() - 1).epoch;
  termination.sampler_exhausted();
  report_epoch_ends();
}

void RunSupervisor::report_epoch_ends() {
  for (auto& [number, termination] : epochs_) {
    if (!termination.report_end()) continue;
    ++epochs_done_;
    observer_.on_event(epoch_end_text(setup_.steps, number));
  }
  if (opened_ || !held_out_ready_) return;
  try_finish();
}

// --- steps ---------------------------------------------------------------------------------------

void RunSupervisor::step_computed(int64_t step, int64_t membership) {
  touch();
  if (finished_ || !ledger_.computed(step, membership)) return;
  orders_.reduce(ledger_.members(), step, membership);
}

void RunSupervisor::reduced(int trainer, int64_t step, int64_t membership, double seconds) {
  touch();
  meter_.trainer_worked(0, seconds);
  if (finished_ || !ledger_.reduced(trainer, step, membership)) return;
  ledger_.commit();
  orders_.commit(step);
  count_committed_step(setup_.steps.at(step));
  applied_.clear();
  // An evaluation measures the parameters of one step, also when a death makes it begin again.
  apply_waits_ = evaluation_.has_value();
  if (!apply_waits_) apply_step();
}

void RunSupervisor::apply_step() {
  apply_waits_ = false;
  apply_round_ = ++rounds_;
  const int64_t step = ledger_.step();
  orders_.apply(ledger_.members(), step,
                settings_.checksum_steps > 0 && step % settings_.checksum_steps == 0, apply_round_);
}

void RunSupervisor::count_committed_step(const PlannedStep& step) {
  progress_.micro_batches += step.count;
  progress_.ledger_crc32c = ledger_crc32c(progress_.ledger_crc32c, step);
  epoch(step.epoch).step_committed();
}

void RunSupervisor::applied(int64_t step, const AppliedReport& report, const PoolState& pool) {
  touch();
  meter_.trainer_worked(0, report.seconds);
  if (finished_ || report.round != apply_round_) return;
  pool_ = pool;
  if (ledger_.is_member(report.trainer)) applied_.push_back(report);
  if (ledger_.applied(report.trainer, step)) all_applied(step);
}

void RunSupervisor::all_applied(int64_t step) {
  std::set<uint32_t> checksums;
  for (const AppliedReport& other : applied_) {
    if (other.checksum) checksums.insert(*other.checksum);
  }
  if (checksums.size() > 1) {
    finish(internal_error(
        fmt::format("{}: the trainers' parameters differ after the update (checksums {:08x})",
                    where(step), fmt::join(checksums, ", "))));
    return;
  }
  end_step(step);
}

void RunSupervisor::end_step(int64_t step) {
  opened_ = false;
  const StepSums& sums = applied_.front().sums;
  progress_.step = step + 1;
  progress_.tokens += sums.tokens;
  progress_.samples += step_samples_;
  progress_.supervised += sums.supervised;
  simulated_sum_ += sums.simulated_acceptance_length();
  ++simulated_steps_;
  pool_peak_ = std::max(pool_peak_, pool_.bytes_peak);
  if (applied_.front().applied.skipped) {
    ++progress_.steps_skipped;
    observer_.on_event(fmt::format("{}: no row is supervised; the step was skipped", where(step)));
  }
  meter_.step_done(now());
  report_step(setup_.steps.at(step), pool_);
  report_epoch_ends();
  if (!finished_) boundary();
}

// --- boundaries ----------------------------------------------------------------------------------

void RunSupervisor::boundary() {
  if (finished_ || !held_out_ready_ || rewind_) return;
  const int64_t step = ledger_.step();
  if (!order_due(step)) return;
  if (step == setup_.steps.steps() || stopping_) return try_finish();
  // The save before the first step proves the disk, so nothing is trained before it is done.
  if (checkpoint_ && checkpoint_->step == 0) return;
  if (joining(step) || leaving()) return;
  tell_state();
  if (pausing_) return;  // order() comes back here.
  if (!opened_before_) meter_.start(now());
  opened_ = opened_before_ = true;
  orders_.open_step(setup_.steps.at(step));
}

bool RunSupervisor::order_due(int64_t step) {
  const bool fresh = asked_at_ != step;
  const bool evaluate = fresh && evaluation_policy_.due(step);
  const bool due = fresh && checkpoint_policy_.due(step, evaluate);
  if (due) join_waits_for_due_ = false;
  const bool wanted =
      save_wanted_ && !is_saved(step) && !(checkpoint_ && checkpoint_->step == step);
  const bool save = wanted || (saved_at_ != step && (due || stopping_ || wants_join()));
  // One at a time in memory; checkpoint_written() comes back here.
  if (save && checkpoint_) return false;
  asked_at_ = step;
  if (save_wanted_ && is_saved(step)) {
    observer_.on_event(fmt::format("the checkpoint of step {} is {}", step, saved_.path));
    observer_.on_checkpoint_kept(step, saved_.path);
  }
  save_wanted_ = false;
  if (evaluate) begin_evaluation(step);
  if (!save) return true;
  saved_at_ = step;
  const int from = ledger_.members().front();
  checkpoint_ = PendingCheckpoint{step, progress(), best_, from, false, !evaluation_};
  if (!setup_.data.held_out && step > 0) rank_by_training();
  orders_.snapshot(from, step);
  return true;
}

void RunSupervisor::begin_evaluation(int64_t step) {
  const std::vector<int>& members = ledger_.members();
  const int64_t round = ++rounds_;
  evaluation_ = PendingEvaluation{step, round, {members.begin(), members.end()}, {}, 0};
  orders_.evaluate(members, step, round);
}

RunProgress RunSupervisor::progress() const {
  RunProgress progress = progress_;
  const RunProgress& before = settings_.progress;
  progress.seconds = before.seconds + now() - started_;
  progress.feature_seconds = before.feature_seconds + meter_.target_busy_seconds();
  progress.train_seconds = before.train_seconds + meter_.trainer_busy_seconds();
  return progress;
}

void RunSupervisor::rank_by_training() {
  const double simulated = ratio(simulated_sum_, static_cast<double>(simulated_steps_));
  simulated_sum_ = 0;
  simulated_steps_ = 0;
  best_.better(checkpoint_->step, simulated);
}

void RunSupervisor::evaluated(int trainer, int64_t round, const WalkCounts& counts,
                              double seconds) {
  touch();
  meter_.trainer_elsewhere(seconds);
  if (finished_ || !evaluation_ || evaluation_->round != round) return;
  if (evaluation_->left.erase(trainer) == 0) return;
  evaluation_->counts.add(counts);
  evaluation_->seconds = std::max(evaluation_->seconds, seconds);
  if (!evaluation_->left.empty()) return;
  const int64_t step = evaluation_->step;
  EvaluationReport report;
  report.step = step;
  report.draft_lengths = setup_.draft_lengths;
  for (size_t i = 0; i < setup_.draft_lengths.size(); ++i) {
    const bool measured =
        i < evaluation_->counts.rounds.size() && evaluation_->counts.rounds[i] > 0;
    report.acceptance_length_walk.push_back(
        measured ? static_cast<double>(evaluation_->counts.tokens[i]) /
                       static_cast<double>(evaluation_->counts.rounds[i])
                 : 1.0);
  }
  report.seconds = evaluation_->seconds;
  report.best = best_.better(step, report.acceptance_length_walk.back());
  evaluation_.reset();
  observer_.on_evaluation(report);
  if (checkpoint_ && checkpoint_->step == step) {
    checkpoint_->measured = true;
    try_write();
  }
  if (apply_waits_) apply_step();
  if (!opened_) leave_waits_ ? boundary() : try_finish();
}

void RunSupervisor::snapshot_taken(int64_t step, double seconds) {
  touch();
  meter_.trainer_elsewhere(seconds);
  if (finished_ || !checkpoint_ || checkpoint_->step != step) return;
  if (checkpoint_->copied) return;  // One in whose place another copies has said it, too.
  checkpoint_->copied = true;
  try_write();
}

void RunSupervisor::try_write() {
  // A checkpoint knows what was measured of it, so that a resumed run knows the best one.
  if (!checkpoint_->copied || !checkpoint_->measured) return;
  checkpoint_->progress.best_step = best_.step();
  checkpoint_->progress.best_acceptance = best_.acceptance();
  const bool prove = checkpoint_->step == 0;
  orders_.write_checkpoint(checkpoint_->step, checkpoint_->progress, prove);
}

void RunSupervisor::checkpoint_written(const CheckpointReport& report, const Status& status) {
  touch();
  if (finished_ || !checkpoint_ || checkpoint_->step != report.step) return;
  const BestPolicy best_before = checkpoint_->best_before;
  const bool source_lost = !roll_.there(WorkerKind::kTrainer, checkpoint_->from);
  const RunProgress progress = checkpoint_->progress;
  checkpoint_.reset();
  last_checkpoint_status_ = status;
  observer_.on_checkpoint(report);
  if (status.ok()) {
    latest_checkpoint_ = report.directory;
    saved_ = {report.directory, progress};
    if (best_.step() == report.step) {
      best_checkpoint_ = report.directory;
      orders_.mark_best(report.step);
    }
  } else {
    ++checkpoint_failures_;
    best_ = best_before;
    if (report.step == 0 && !source_lost) {
      finish(status.with_context("the first checkpoint, before any training"));
      return;
    }
    // A death says nothing of the disk: another writes it, or the run goes back.
    if (source_lost) save_wanted_ = true;
    if (source_lost && ledger_.members().empty()) {
      nobody_left();
      tell_state();
    }
    observer_.on_event(
        fmt::format("the checkpoint of step {} was not written, the one before stays valid: {}",
                    report.step, status.message()));
  }
  if (rewind_) return try_rewind();
  if (!opened_) boundary();
}

// --- the operator --------------------------------------------------------------------------------

void RunSupervisor::order(RunOrder order) {
  touch();
  if (finished_) return;
  switch (order) {
    case RunOrder::kPause: pausing_ = true; break;
    case RunOrder::kResume: pausing_ = false; break;
    case RunOrder::kSnapshot: save_wanted_ = true; break;
    case RunOrder::kStop: return stop();
  }
  told_state_.reset();  // Each order is answered, also one that changes nothing.
  tell_state();
  if (!opened_) boundary();
}

void RunSupervisor::stop() {
  if (stopping_) return;
  stopping_ = true;
  observer_.on_event(
      fmt::format("stopping after step {}, with a checkpoint", ledger_.step() + (opened_ ? 1 : 0)));
  tell_state();
  // Without held-out features, or trainers, there is nothing newer to save.
  if (!held_out_ready_ || rewind_) finish(ok_status());
  if (!finished_ && !opened_) boundary();
}

RunState RunSupervisor::state() const {
  if (finished_) return RunState::kEnded;
  const bool waiting =
      rewind_ || (needs(WorkerKind::kTarget) && roll_.there(WorkerKind::kTarget).empty());
  if (waiting) return RunState::kWaiting;
  if (stopping_) return RunState::kStopping;
  if (!pausing_) return RunState::kRunning;
  return opened_ ? RunState::kPausing : RunState::kPaused;
}

void RunSupervisor::tell_state() {
  const RunState now = state();
  if (told_state_ == now) return;
  told_state_ = now;
  observer_.on_state({now, progress_.step});
}

// --- the end -------------------------------------------------------------------------------------

void RunSupervisor::try_finish() {
  const int64_t step = ledger_.step();
  const bool done = step == setup_.steps.steps();
  if (finished_ || rewind_ || !(done || stopping_)) return;
  if (asked_at_ != step || checkpoint_ || evaluation_) return;
  if (done && !stopping_ && first_step_ < step && !epoch(setup_.steps.at(step - 1).epoch).over()) {
    return;
  }
  if (!last_checkpoint_status_.ok()) {
    finish(last_checkpoint_status_.with_context("the last checkpoint was not written"));
    return;
  }
  finish(ok_status());
}

void RunSupervisor::failed(const std::string& who, const Status& status) {
  touch();
  if (finished_) return;
  finish(status.with_context(fmt::format("{}, {}", who, where(ledger_.step()))));
}

void RunSupervisor::tick(int signals) {
  if (finished_) return;
  switch (stop_policy_.wish(signals)) {
    case StopPolicy::Wish::kGoOn: break;
    case StopPolicy::Wish::kQuit:
      finish(cancelled(fmt::format("a second signal ended the run at once; {}",
                                   latest_checkpoint_.empty()
                                       ? std::string("nothing was saved by it")
                                       : "the last checkpoint is " + latest_checkpoint_)));
      return;
    case StopPolicy::Wish::kStopAtBoundary:
      if (stopping_) break;
      return stop();
  }
  if (state() == RunState::kPaused || state() == RunState::kWaiting) touch();
  check_waits();
  if (now() - last_word_ > settings_.stall_seconds) finish(unavailable(standstill()));
}

void RunSupervisor::finish(const Status& status) {
  if (finished_) return;
  finished_ = true;
  tell_state();
  if (!status.ok()) observer_.on_event("the run ends: " + status.message());
  orders_.finish(status);
}

}  // namespace percheron
