#include "actors/service/run_reporter.h"

#include <chrono>
#include <utility>

#include "actors/service/activity_report.h"

namespace percheron {
namespace {

constexpr auto kTickInterval = std::chrono::milliseconds(500);

// What a run without workers says nothing of.
void clear_activity(proto::RunReport& report) {
  report.clear_workers();
  report.clear_activity_seconds();
  report.clear_phase();
  report.clear_bottleneck();
  report.clear_homes();
  report.clear_queued_later();
  report.clear_steal_pairs();
  report.clear_lease_expirations();
  report.clear_capture_samples_per_second();
  report.clear_train_samples_per_second();
}

}  // namespace

RunReporter::RunReporter(const Clock& clock, Send send) : clock_(clock), send_(std::move(send)) {
  report_.set_state(proto::RunReport::STARTING);
}

void RunReporter::send_locked() {
  sent_at_ = clock_.monotonic_ns();
  clear_activity(report_);
  if (workers_) {
    for (proto::WorkerState& state : workers_()) *report_.add_workers() = std::move(state);
    if (activity_) add_activity(activity_->snapshot(), report_);
  }
  send_(report_);
}

void RunReporter::on_step(const StepReport& report) {
  const std::lock_guard lock(mutex_);
  add_step(report, report_);
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

void RunReporter::set_activity(std::shared_ptr<const RunActivity> activity) {
  const std::lock_guard lock(mutex_);
  activity_ = std::move(activity);
}

void RunReporter::tick() {
  const std::lock_guard lock(mutex_);
  if (clock_.monotonic_ns() - sent_at_ >= kIntervalNs) send_locked();
}

void RunReporter::add_note(const std::string& note) {
  const std::lock_guard lock(mutex_);
  report_.add_notes(note);
}

void RunReporter::set_moved(const std::string& node) {
  const std::lock_guard lock(mutex_);
  report_.set_moved_to(node);
}

void RunReporter::set_state(proto::RunReport::State state, const std::string& message) {
  const std::lock_guard lock(mutex_);
  report_.set_state(state);
  report_.set_message(message);
  send_locked();
}

ReportTicks::ReportTicks(RunReporter& reporter)
    : thread_([this, &reporter] {
        std::unique_lock lock(mutex_);
        while (!ended_.wait_for(lock, kTickInterval, [this] { return ending_; })) reporter.tick();
      }) {}

ReportTicks::~ReportTicks() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  ended_.notify_all();
  thread_.join();
}

}  // namespace percheron
