#include "actors/service/run_reporter.h"

#include <utility>

namespace percheron {

RunReporter::RunReporter(const Clock& clock, Send send) : clock_(clock), send_(std::move(send)) {
  report_.set_state(proto::RunReport::STARTING);
}

void RunReporter::send_locked() {
  sent_at_ = clock_.monotonic_ns();
  report_.clear_workers();
  if (workers_) {
    for (proto::WorkerState& state : workers_()) *report_.add_workers() = std::move(state);
  }
  send_(report_);
}

void RunReporter::on_step(const StepReport& report) {
  const std::lock_guard lock(mutex_);
  report_.set_step(report.step);
  report_.set_steps_total(report.steps_total);
  report_.set_epoch(report.epoch);
  report_.set_loss(report.loss);
  report_.set_simulated_acceptance_length(report.simulated_acceptance_length);
  report_.set_tokens_per_second(report.tokens_per_second);
  report_.set_target_tokens_per_second(report.target_tokens_per_second);
  report_.set_trainer_tokens_per_second(report.trainer_tokens_per_second);
  report_.set_wait_share(report.wait_share);
  report_.set_feature_bytes(report.pool_bytes);
  report_.set_feature_bytes_max(report.pool_bytes_max);
  report_.set_steals(report.steals_total);
  report_.set_eta_seconds(report.eta_seconds);
  if (clock_.monotonic_ns() - sent_at_ >= kIntervalNs) send_locked();
}

void RunReporter::on_evaluation(const EvaluationReport& report) {
  const std::lock_guard lock(mutex_);
  if (!report.acceptance_length_walk.empty()) {
    report_.set_acceptance_length(report.acceptance_length_walk.back());
  }
  send_locked();
}

void RunReporter::on_checkpoint(const CheckpointReport& report) {
  if (!report.error.empty()) return;  // An event says so.
  const std::lock_guard lock(mutex_);
  report_.set_latest_checkpoint(report.directory);
  send_locked();
}

void RunReporter::on_state(const StateReport& report) {
  const std::lock_guard lock(mutex_);
  report_.set_step(report.step);
  report_.clear_message();
  switch (report.state) {
    case RunState::kRunning: report_.set_state(proto::RunReport::RUNNING); break;
    case RunState::kPausing: report_.set_state(proto::RunReport::PAUSING); break;
    case RunState::kPaused: report_.set_state(proto::RunReport::PAUSED); break;
    case RunState::kWaiting:
      report_.set_state(proto::RunReport::RUNNING);
      report_.set_message("waits for a worker to come back");
      break;
    case RunState::kStopping: report_.set_state(proto::RunReport::STOPPING); break;
    case RunState::kEnded: return;  // How it ended is told by set_state().
  }
  send_locked();
}

void RunReporter::set_workers(std::function<std::vector<proto::WorkerState>()> workers) {
  const std::lock_guard lock(mutex_);
  workers_ = std::move(workers);
}

void RunReporter::set_state(proto::RunReport::State state, const std::string& message) {
  const std::lock_guard lock(mutex_);
  report_.set_state(state);
  report_.set_message(message);
  send_locked();
}

}  // namespace percheron
