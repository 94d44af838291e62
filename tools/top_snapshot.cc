#include "tools/top_snapshot.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "actors/node/run_book.h"
#include "actors/placement_plan.h"

namespace percheron {
namespace {

using Report = proto::RunReport;

// States in which rates are of interest.
bool works(Report::State state) {
  return state == Report::RUNNING || state == Report::PAUSING || state == Report::STOPPING;
}

std::string state_text(const Report& report) {
  const std::string state = state_name(report.state());
  const bool said =
      report.state() != Report::RUNNING || report.phase().empty() || report.phase() == "training";
  if (said) return state;
  return state +
         (report.phase() == "held_out" ? " (held-out features)" : " (" + report.phase() + ")");
}

const proto::ActorState* find_actor(const Report* report, const proto::WorkerState& of,
                                    const proto::ActorState& actor) {
  if (!report) return nullptr;
  for (const proto::WorkerState& worker : report->workers()) {
    if (worker.node() != of.node() || worker.device() != of.device()) continue;
    for (const proto::ActorState& before : worker.actors()) {
      if (before.role() == actor.role() && before.number() == actor.number()) return &before;
    }
  }
  return nullptr;
}

// What the devices of a worker are said to take together, and to do on average.
void add_facts(const google::protobuf::RepeatedPtrField<proto::NodeRecord>& nodes,
               TopWorker& worker) {
  const Result<std::vector<DeviceId>> ids = parse_device_group(worker.device);
  if (!ids.ok()) return;
  double power = 0, utilization = 0;
  size_t with_power = 0, with_utilization = 0;
  for (const proto::NodeRecord& node : nodes) {
    if (node.name() != worker.node) continue;
    for (const proto::DeviceRecord& device : node.devices()) {
      const proto::DeviceFacts& facts = device.facts();
      if (std::ranges::none_of(*ids,
                               [&](DeviceId id) { return to_string(id) == device.device(); })) {
        continue;
      }
      power += facts.power_watts();
      utilization += facts.utilization();
      with_power += facts.has_power_watts() ? 1 : 0;
      with_utilization += facts.has_utilization() ? 1 : 0;
    }
  }
  if (with_power == ids->size()) worker.power_watts = power;
  if (with_utilization == ids->size()) {
    worker.utilization = utilization / static_cast<double>(ids->size());
  }
}

// What an actor did between two reports that are `seconds` apart.
TopWorker worker_between(const proto::WorkerState& of, const proto::ActorState& now,
                         const proto::ActorState* before, double seconds) {
  TopWorker worker;
  worker.node = of.node();
  worker.device = now.has_device() ? now.device() : of.device();
  worker.name = fmt::format(
      "{} {}", now.role() == proto::ActorMessage::TARGET ? "target" : "trainer", now.number());
  worker.state = of.state() == "ready" ? now.occupation() : of.state();
  if (worker.state.empty()) worker.state = of.state();
  if (seconds <= 0) return worker;
  // A job is counted when it ends, so a share may be a little above 1.
  const auto share = [&](double counted) { return std::clamp(counted / seconds, 0.0, 1.0); };
  worker.busy_share = share(now.busy_seconds() - (before ? before->busy_seconds() : 0));
  worker.wait_share = share(now.wait_seconds() - (before ? before->wait_seconds() : 0));
  const int64_t samples = now.samples() - (before ? before->samples() : 0);
  worker.samples_per_second = static_cast<double>(std::max<int64_t>(samples, 0)) / seconds;
  return worker;
}

void add_workers(const Report& report, const Report* before,
                 const google::protobuf::RepeatedPtrField<proto::NodeRecord>& nodes,
                 TopSnapshot& top) {
  const double seconds = report.activity_seconds() - (before ? before->activity_seconds() : 0);
  std::vector<std::pair<std::pair<int, int>, TopWorker>> workers;
  for (const proto::WorkerState& state : report.workers()) {
    top.worker_restarts += state.restarts();
    for (const proto::ActorState& actor : state.actors()) {
      TopWorker worker = worker_between(state, actor, find_actor(before, state, actor), seconds);
      add_facts(nodes, worker);
      workers.push_back({{actor.role(), actor.number()}, std::move(worker)});
    }
  }
  std::ranges::stable_sort(workers, {}, [](const auto& entry) { return entry.first; });
  for (auto& [place, worker] : workers) top.workers.push_back(std::move(worker));
}

}  // namespace

void TopHistory::add(const Report& report, double now) {
  if (!reports_.empty()) {
    const double last = reports_.back().activity_seconds();
    if (report.activity_seconds() == last) {
      reports_.back() = report;  // Its state may be another.
      return;
    }
    if (report.activity_seconds() < last) reports_.clear();
  }
  reports_.push_back(report);
  changed_at_ = now;
  while (reports_.size() > 2 &&
         report.activity_seconds() - reports_[1].activity_seconds() >= kWindowSeconds) {
    reports_.pop_front();
  }
}

double TopHistory::silent_seconds(double now) const {
  if (reports_.empty() || reports_.back().activity_seconds() == 0 ||
      run_is_over(reports_.back().state()) || reports_.back().state() == Report::RECOVERING) {
    return 0;
  }
  const double silent = now - changed_at_;
  return silent >= kSilentSeconds ? silent : 0;
}

TopSnapshot top_snapshot(const proto::RunRecord& run, const TopHistory& history,
                         const google::protobuf::RepeatedPtrField<proto::NodeRecord>& nodes,
                         double now) {
  const Report& report = run.report();
  TopSnapshot top;
  top.run = run.id();
  top.state = state_text(report);
  top.message = report.message();
  top.works = works(report.state());
  top.silent_seconds = history.silent_seconds(now);
  top.step = report.step();
  top.steps_total = report.steps_total();
  top.loss = report.loss();
  top.simulated_acceptance_length = report.simulated_acceptance_length();
  top.held_out_acceptance_length = report.acceptance_length();
  top.tokens_per_second = report.tokens_per_second();
  top.eta_seconds = report.eta_seconds();
  top.capture_samples_per_second = report.capture_samples_per_second();
  top.train_samples_per_second = report.train_samples_per_second();
  top.bottleneck = report.bottleneck();
  top.queued_later = report.queued_later();
  top.store_bytes = report.feature_bytes();
  top.store_bytes_max = report.feature_bytes_max();
  top.steals_total = report.steals();
  top.supervisor_restarts = run.supervisor_restarts();
  top.lease_expirations = report.lease_expirations();
  for (const proto::HomeState& home : report.homes()) {
    top.homes.push_back({home.home(), home.tickets(), home.bytes()});
  }
  for (const proto::StealCount& steal : report.steal_pairs()) {
    top.steals.push_back({{steal.thief(), steal.victim()}, steal.count()});
  }
  if (run_is_over(report.state())) return top;
  add_workers(report, history.before(), nodes, top);
  return top;
}

}  // namespace percheron
