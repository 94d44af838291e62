#include "actors/run_supervisor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

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

std::vector<double> ratios(const std::vector<double>& sums, const std::vector<double>& counts) {
  std::vector<double> result;
  for (size_t i = 0; i < sums.size() && i < counts.size(); ++i) {
    result.push_back(ratio(sums[i], counts[i]));
  }
  return result;
}

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
      epochs_done_(setup_.steps.begin(settings_.progress.step).epoch) {
  if (progress_.best_step) {
    best_.restore(*progress_.best_step, progress_.best_acceptance);
    best_checkpoint_ = join_path(setup_.output(), step_directory_name(*progress_.best_step));
  }
  if (settings_.resumed_from.empty()) return;
  latest_checkpoint_ = settings_.resumed_from;
  asked_at_ = saved_at_ = progress_.step;  // Its evaluation and checkpoint exist.
}

void RunSupervisor::start() {
  started_ = now();
  touch();
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
  const int64_t first = std::max(setup_.steps.first_step(number), settings_.progress.step);
  const int64_t end = number + 1 < setup_.steps.epochs()
                          ? std::min(setup_.steps.first_step(number + 1), setup_.steps.steps())
                          : setup_.steps.steps();
  const std::vector<int> targets = first_numbers(setup_.placement.targets.size());
  return epochs_.emplace(number, EpochTermination(end - first, {targets.begin(), targets.end()}))
      .first->second;
}

void RunSupervisor::target_work(int target, MicroBatchId id, bool leased, int64_t tokens,
                                double seconds) {
  touch();
  targets_[target] = {leased ? std::optional(id) : std::nullopt, now()};
  if (!leased) meter_.target_worked(tokens, seconds);
}

void RunSupervisor::trainer_work(const TrainerReport& report) {
  touch();
  Worker& trainer = trainers_[report.trainer];
  trainer.id = report.leased ? std::optional(report.id) : std::nullopt;
  trainer.since = now();
  EpochTermination& termination = epoch(report.id.epoch);
  if (report.leased) {
    termination.leased();
  } else {
    termination.settled();
    ++trainer.micro_batches;
    meter_.trainer_worked(report.tokens, report.seconds);
    step_samples_ += report.samples;
    report_epoch_ends();
  }
  progress_.steals = settings_.progress.steals + report.steals;
}

void RunSupervisor::epoch_exhausted(int64_t number) {
  touch();
  if (number < 0) return;  // held-out data
  EpochTermination& termination = epoch(number);
  for (size_t target = 0; target < setup_.placement.targets.size(); ++target) {
    termination.target_done(static_cast<int>(target));
  }
  termination.sampler_exhausted();
  report_epoch_ends();
}

void RunSupervisor::report_epoch_ends() {
  for (auto& [number, termination] : epochs_) {
    if (!termination.report_end()) continue;
    ++epochs_done_;
    observer_.on_event(fmt::format("epoch {} of {} is done: {} steps", number + 1,
                                   setup_.steps.epochs(), termination.committed()));
  }
  if (opened_ || !held_out_ready_) return;
  try_finish();
}

// --- steps ---------------------------------------------------------------------------------------

void RunSupervisor::step_computed(int64_t step, int64_t membership) {
  touch();
  if (finished_ || !ledger_.computed(step, membership)) return;
  orders_.reduce(step, membership);
}

void RunSupervisor::reduced(int trainer, int64_t step, int64_t membership, double seconds) {
  touch();
  meter_.trainer_worked(0, seconds);
  if (finished_ || !ledger_.reduced(trainer, step, membership)) return;
  ledger_.commit();
  orders_.commit(step);
  count_committed_step(setup_.steps.at(step));
  applied_.clear();
  orders_.apply(step, settings_.checksum_steps > 0 && step % settings_.checksum_steps == 0);
}

void RunSupervisor::count_committed_step(const PlannedStep& step) {
  progress_.micro_batches += step.count;
  progress_.ledger_crc32c = ledger_crc32c(progress_.ledger_crc32c, step);
  epoch(step.epoch).step_committed();
}

void RunSupervisor::applied(int64_t step, const AppliedReport& report, const PoolState& pool) {
  touch();
  meter_.trainer_worked(0, report.seconds);
  if (finished_) return;
  applied_.push_back(report);
  if (!ledger_.applied(report.trainer, step)) return;
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
  end_step(step, pool);
}

void RunSupervisor::end_step(int64_t step, const PoolState& pool) {
  opened_ = false;
  const StepSums& sums = applied_.front().sums;
  progress_.step = step + 1;
  progress_.tokens += sums.tokens;
  progress_.samples += step_samples_;
  step_samples_ = 0;
  progress_.supervised += sums.supervised;
  simulated_sum_ += sums.simulated_acceptance_length();
  ++simulated_steps_;
  pool_peak_ = std::max(pool_peak_, pool.bytes_peak);
  if (applied_.front().applied.skipped) {
    ++progress_.steps_skipped;
    observer_.on_event(fmt::format("{}: no row is supervised; the step was skipped", where(step)));
  }
  meter_.step_done(now());
  report_step(setup_.steps.at(step), pool);
  report_epoch_ends();
  if (!finished_) boundary();
}

void RunSupervisor::report_step(const PlannedStep& step, const PoolState& pool) {
  const AppliedReport& report = applied_.front();
  const StepSums& sums = report.sums;
  const RunMeter::Rates rates = meter_.rates();
  StepReport line;
  line.step = step.step + 1;
  line.steps_total = setup_.steps.steps();
  line.epoch = step.epoch;
  line.loss = ratio(sums.loss, sums.weight);
  line.position_loss = ratios(sums.position_loss, sums.position_weight);
  line.position_accuracy = ratios(sums.position_correct, sums.position_count);
  line.simulated_acceptance_length = sums.simulated_acceptance_length();
  const double base = setup_.optimizer.kind == OptimizerKind::kMuon
                          ? setup_.optimizer.muon_learning_rate
                          : setup_.optimizer.learning_rate;
  line.learning_rate = base * report.applied.rate_factor;
  line.gradient_norm = report.applied.gradient_norm;
  line.tokens = sums.tokens;
  line.supervised = sums.supervised;
  line.tokens_total = progress_.tokens;
  line.step_seconds = rates.step_seconds;
  line.target_tokens_per_second = rates.target_tokens_per_second;
  line.trainer_tokens_per_second = rates.trainer_tokens_per_second;
  line.tokens_per_second = rates.tokens_per_second;
  line.wait_share = rates.wait_share;
  line.pool_bytes = pool.bytes;
  line.pool_bytes_max = pool.bytes_max;
  line.cached_bytes = pool.cached_bytes;
  line.steals_total = progress_.steals;
  line.eta_seconds = rates.mean_step_seconds * static_cast<double>(line.steps_total - line.step);
  observer_.on_step(line);
}

// --- boundaries ----------------------------------------------------------------------------------

void RunSupervisor::boundary() {
  if (finished_) return;
  const int64_t step = ledger_.step();
  const bool fresh = asked_at_ != step;
  const bool evaluate = fresh && evaluation_policy_.due(step);
  const bool due = fresh && checkpoint_policy_.due(step, evaluate);
  const bool save = saved_at_ != step && (due || stopping_);
  if (save && checkpoint_)
    return;  // One at a time in memory; checkpoint_written() comes back here.
  asked_at_ = step;
  if (evaluate) {
    evaluation_ = PendingEvaluation{step, static_cast<int>(ledger_.members().size()), {}, 0};
    orders_.evaluate(step);
  }
  if (save) {
    saved_at_ = step;
    checkpoint_ = PendingCheckpoint{step, progress(), best_, false, !evaluate};
    if (!setup_.data.held_out && step > 0) rank_by_training();
    orders_.snapshot(step);
  }
  if (step == setup_.steps.steps() || stopping_) return try_finish();
  // The save before the first step proves the disk, so nothing is trained before it is done.
  if (checkpoint_ && checkpoint_->step == 0) return;
  if (!opened_before_) meter_.start(now());
  opened_ = opened_before_ = true;
  orders_.open_step(setup_.steps.at(step));
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

void RunSupervisor::evaluated(int64_t step, const WalkCounts& counts, double seconds) {
  touch();
  meter_.trainer_elsewhere(seconds);
  if (finished_ || !evaluation_ || evaluation_->step != step) return;
  evaluation_->counts.add(counts);
  evaluation_->seconds = std::max(evaluation_->seconds, seconds);
  if (--evaluation_->left > 0) return;
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
  if (!opened_) try_finish();
}

void RunSupervisor::snapshot_taken(int64_t step, double seconds) {
  touch();
  meter_.trainer_elsewhere(seconds);
  if (finished_ || !checkpoint_ || checkpoint_->step != step) return;
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
  checkpoint_.reset();
  last_checkpoint_status_ = status;
  observer_.on_checkpoint(report);
  if (status.ok()) {
    latest_checkpoint_ = report.directory;
    if (best_.step() == report.step) {
      best_checkpoint_ = report.directory;
      orders_.mark_best(report.step);
    }
  } else {
    ++checkpoint_failures_;
    best_ = best_before;
    if (report.step == 0) {
      finish(status.with_context("the first checkpoint, before any training"));
      return;
    }
    observer_.on_event(
        fmt::format("the checkpoint of step {} was not written, the one before stays valid: {}",
                    report.step, status.message()));
  }
  if (!opened_) boundary();
}

// --- the end -------------------------------------------------------------------------------------

void RunSupervisor::try_finish() {
  const int64_t step = ledger_.step();
  const bool done = step == setup_.steps.steps();
  if (finished_ || !(done || stopping_) || asked_at_ != step || checkpoint_ || evaluation_) return;
  if (done && !stopping_ && settings_.progress.step < step &&
      !epoch(setup_.steps.at(step - 1).epoch).over()) {
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
      stopping_ = true;
      observer_.on_event(fmt::format("stopping after step {}, with a checkpoint",
                                     ledger_.step() + (opened_ ? 1 : 0)));
      if (!held_out_ready_) finish(ok_status());
      if (!finished_ && !opened_) boundary();
      return;
  }
  if (now() - last_word_ > settings_.stall_seconds) finish(unavailable(standstill()));
}

void RunSupervisor::finish(const Status& status) {
  if (finished_) return;
  finished_ = true;
  if (!status.ok()) observer_.on_event("the run ends: " + status.message());
  orders_.finish(status);
}

std::string RunSupervisor::where(int64_t step) const {
  if (step >= setup_.steps.steps()) return fmt::format("after the last step {}", step);
  const PlannedStep range = setup_.steps.at(step);
  return fmt::format("step {} (epoch {}, micro-batches {} to {})", step, range.epoch, range.first,
                     range.first + range.count - 1);
}

std::string RunSupervisor::standstill() const {
  std::string text = fmt::format("no word from anyone for {} at {}",
                                 format_duration(now() - last_word_), where(ledger_.step()));
  const auto add_workers = [&](const char* kind, const std::map<int, Worker>& workers,
                               const std::vector<DeviceId>& devices) {
    for (const auto& [number, worker] : workers) {
      if (!worker.id) continue;
      text += fmt::format("; {} {} on {} has worked on micro-batch ({}, {}) for {}", kind, number,
                          to_string(devices[static_cast<size_t>(number)]), worker.id->epoch,
                          worker.id->index, format_duration(now() - worker.since));
    }
  };
  add_workers("target", targets_, setup_.placement.targets);
  add_workers("trainer", trainers_, setup_.placement.trainers);
  if (!held_out_ready_) text += "; the held-out features are not complete";
  if (ledger_.phase() != StepLedger::Phase::kComputing) {
    text += fmt::format("; trainers {} have not {} the step", fmt::join(ledger_.missing(), ", "),
                        ledger_.phase() == StepLedger::Phase::kReducing ? "reduced" : "applied");
  }
  if (checkpoint_) text += fmt::format("; the checkpoint of step {} is open", checkpoint_->step);
  if (evaluation_) text += fmt::format("; the evaluation of step {} is open", evaluation_->step);
  return text;
}

RunSummary RunSupervisor::summary() const {
  RunSummary summary;
  summary.steps = progress_.step;
  summary.steps_total = setup_.steps.steps();
  summary.epochs = epochs_done_;
  summary.tokens = progress_.tokens;
  summary.supervised = progress_.supervised;
  const RunProgress timed = progress();
  summary.seconds = timed.seconds;
  summary.feature_seconds = timed.feature_seconds;
  summary.train_seconds = timed.train_seconds;
  summary.pool_bytes_peak = pool_peak_;
  summary.stopped_early = stopping_ && progress_.step < setup_.steps.steps();
  summary.latest_checkpoint = latest_checkpoint_;
  summary.best_checkpoint = best_checkpoint_;
  const SampleSelection& selection = setup_.data.selection;
  summary.counters = {{"samples_truncated", selection.truncated},
                      {"samples_too_long_skipped", selection.too_long_skipped},
                      {"samples_unsupervised_dropped", selection.unsupervised_dropped},
                      {"held_out_in_training", setup_.data.held_out_in_training},
                      {"steals", progress_.steals},
                      {"steps_skipped", progress_.steps_skipped},
                      {"checkpoint_failures_since_start", checkpoint_failures_},
                      {"stale_messages_since_start", ledger_.stale()}};
  for (const auto& [number, worker] : trainers_) {
    if (setup_.placement.trainers.size() < 2) break;
    summary.counters.emplace_back(fmt::format("micro_batches_of_trainer_{}_since_start", number),
                                  worker.micro_batches);
  }
  return summary;
}

}  // namespace percheron
