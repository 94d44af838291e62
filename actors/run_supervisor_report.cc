#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "actors/run_supervisor.h"
#include "base/units.h"

namespace percheron {
namespace {

double ratio(double sum, double count) { return count > 0 ? sum / count : 0; }

std::vector<double> ratios(const std::vector<double>& sums, const std::vector<double>& counts) {
  std::vector<double> result;
  for (size_t i = 0; i < sums.size() && i < counts.size(); ++i) {
    result.push_back(ratio(sums[i], counts[i]));
  }
  return result;
}

}  // namespace

const char* run_state_name(RunState state) {
  switch (state) {
    case RunState::kRunning: return "running";
    case RunState::kPausing: return "pausing";
    case RunState::kPaused: return "paused";
    case RunState::kWaiting: return "waiting";
    case RunState::kStopping: return "stopping";
    case RunState::kEnded: return "ended";
  }
  return "";
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
  line.samples = std::exchange(step_samples_, 0);
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

std::string RunSupervisor::where(int64_t step) const {
  if (step >= setup_.steps.steps()) return fmt::format("after the last step {}", step);
  const PlannedStep range = setup_.steps.at(step);
  return fmt::format("step {} (epoch {}, micro-batches {} to {})", step, range.epoch, range.first,
                     range.first + range.count - 1);
}

std::string RunSupervisor::standstill() const {
  std::string text = fmt::format("no word from anyone for {} at {}",
                                 format_duration(now() - last_word_), where(ledger_.step()));
  const auto add_workers = [&](WorkerKind kind, const NumberMap<Worker>& workers) {
    for (const auto& [number, worker] : workers) {
      if (worker.holds.empty()) continue;
      text += fmt::format(
          "; {} {} on {} has worked on micro-batch ({}, {}) for {}", worker_kind_name(kind), number,
          devices_.at(kind)[static_cast<size_t>(number)], worker.holds.front().epoch,
          worker.holds.front().index, format_duration(now() - worker.since));
    }
  };
  add_workers(WorkerKind::kTarget, targets_);
  add_workers(WorkerKind::kTrainer, trainers_);
  if (!held_out_ready_) text += "; the held-out features are not complete";
  if (ledger_.phase() != StepLedger::Phase::kComputing) {
    text += fmt::format("; trainers {} have not {} the step", fmt::join(ledger_.missing(), ", "),
                        ledger_.phase() == StepLedger::Phase::kReducing ? "reduced" : "applied");
  }
  if (!regrouping_.empty()) {
    text += fmt::format("; trainers {} have not joined group {}", fmt::join(regrouping_, ", "),
                        ledger_.membership());
  }
  if (join_) {
    text += fmt::format("; trainers {} have not told their parameters' checksum",
                        fmt::join(join_->missing(), ", "));
  }
  if (checkpoint_) text += fmt::format("; the checkpoint of step {} is open", checkpoint_->step);
  if (evaluation_) text += fmt::format("; the evaluation of step {} is open", evaluation_->step);
  return text;
}

RunPhase RunSupervisor::phase() const {
  RunPhase phase;
  phase.evaluating = evaluation_.has_value();
  phase.copying = checkpoint_ && !checkpoint_->copied;
  if (finished_) {
    phase.step = RunPhase::Step::kOver;
  } else if (!held_out_ready_) {
    phase.step = RunPhase::Step::kHeldOut;
  } else if (!opened_) {
    phase.step = RunPhase::Step::kBetween;
  } else {
    switch (ledger_.phase()) {
      case StepLedger::Phase::kComputing: phase.step = RunPhase::Step::kComputing; break;
      case StepLedger::Phase::kReducing: phase.step = RunPhase::Step::kReducing; break;
      case StepLedger::Phase::kApplying: phase.step = RunPhase::Step::kUpdating; break;
    }
  }
  return phase;
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
                      {"stale_messages_since_start", ledger_.stale()},
                      {"membership_changes_since_start", membership_changes_},
                      {"micro_batches_requeued_since_start", requeued_},
                      {"micro_batches_recomputed_since_start", recomputed_},
                      {"rewinds_since_start", rewinds_}};
  for (const auto& [number, worker] : trainers_) {
    if (roll_.places(WorkerKind::kTrainer) < 2) break;
    summary.counters.emplace_back(fmt::format("micro_batches_of_trainer_{}_since_start", number),
                                  worker.micro_batches);
  }
  return summary;
}

}  // namespace percheron
