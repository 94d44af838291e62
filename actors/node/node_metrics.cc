#include "actors/node/node_metrics.h"

#include <map>
#include <string>
#include <utility>

namespace percheron {
namespace {

using Report = proto::RunReport;

double number(int64_t count) { return static_cast<double>(count); }

void collect_progress(const Report& report, const MetricsPage::Labels& run, MetricsPage& page) {
  page.add("percheron_step", run, number(report.step()));
  if (!report.has_steps_total()) return;  // No step was reported yet.
  page.add("percheron_steps_planned", run, number(report.steps_total()));
  page.add("percheron_epoch", run, number(report.epoch()));
  page.add("percheron_eta_seconds", run, report.eta_seconds());
  page.add("percheron_loss", run, report.loss());
  page.add("percheron_simulated_accept_length", run, report.simulated_acceptance_length());
  page.add("percheron_run_tokens_per_second", run, report.tokens_per_second());
  page.add("percheron_run_trainer_wait_ratio", run, report.wait_share());
  page.add("percheron_run_feature_bytes", run, static_cast<double>(report.feature_bytes()));
  page.add("percheron_feature_store_limit_bytes", run,
           static_cast<double>(report.feature_bytes_max()));
  page.add("percheron_run_steals", run, number(report.steals()));
  const std::pair<const char*, double> capacities[] = {
      {"target", report.target_tokens_per_second()},
      {"trainer", report.trainer_tokens_per_second()}};
  for (const auto& [role, tokens] : capacities) {
    MetricsPage::Labels labels = run;
    labels.emplace_back("role", role);
    page.add("percheron_run_capacity_tokens_per_second", labels, tokens);
  }
}

// Values of equal labels are summed, so devices beyond the limit are one.
void collect_workers(const Report& report, const MetricsPage::Labels& run, MetricsPage& page) {
  int place = 0;
  for (const proto::WorkerState& worker : report.workers()) {
    MetricsPage::Labels state = run;
    state.emplace_back("state", worker.state());
    page.add("percheron_run_workers", state, 1);
    const bool labelled = place++ < kRankLabelsMax;
    MetricsPage::Labels device = run;
    device.emplace_back("node", labelled ? worker.node() : "other");
    device.emplace_back("device", labelled ? worker.device() : "other");
    page.add("percheron_run_worker_restarts_total", device, number(worker.restarts()));
  }
}

}  // namespace

void collect_run_record(const proto::RunRecord& record, MetricsPage& page) {
  const Report& report = record.report();
  const MetricsPage::Labels run = {{"run", record.id()}};
  for (int state = Report::State_MIN; state <= Report::State_MAX; ++state) {
    if (!Report::State_IsValid(state)) continue;
    MetricsPage::Labels labels = run;
    labels.emplace_back("state", state_name(static_cast<Report::State>(state)));
    page.add("percheron_state", labels, state == report.state() ? 1 : 0);
  }
  page.add("percheron_supervisor_restarts_total", run, number(record.supervisor_restarts()));
  if (run_is_over(report.state())) return;  // Its last figures would look like present ones.
  collect_progress(report, run, page);
  if (report.acceptance_length() > 0) {
    page.add("percheron_run_acceptance_length", run, report.acceptance_length());
  }
  collect_workers(report, run, page);
}

void collect_node_metrics(NodeDaemon& daemon, PeerLinks* peers, const BuildInfo& build,
                          MetricsPage& page) {
  page.add("percheron_build_info",
           {{"version", build.version}, {"commit", build.commit}, {"cuda", build.cuda}}, 1);
  page.add("percheron_node_feature_bytes", {}, static_cast<double>(daemon.features().bytes()));
  const FeatureRegions::Counts published = daemon.features().counts();
  const RegionPoolCounts pulled = peers ? peers->pull_counts() : RegionPoolCounts();
  const auto add_regions = [&](const char* kind, const char* memory, int64_t count) {
    page.add("percheron_node_feature_regions_total", {{"kind", kind}, {"memory", memory}},
             number(count));
  };
  add_regions("published", "new", published.in_new_memory);
  add_regions("published", "used", published.in_used_memory);
  add_regions("pulled", "new", pulled.created);
  add_regions("pulled", "used", pulled.reused);
  page.add("percheron_node_idle_region_bytes", {}, static_cast<double>(pulled.idle_bytes));
  page.add("percheron_node_devices_in_use", {}, static_cast<double>(daemon.device_owners().size()));
  page.add("percheron_node_log_rotations_total", {}, number(daemon.logs().rotations()));
  page.add("percheron_node_runs_forgotten_total", {}, number(daemon.cleanup().forgotten()));
  for (const proto::RunRecord& record : daemon.own_runs()) collect_run_record(record, page);
  if (!peers) return;
  int place = 0;
  for (const proto::NodeRecord& node : peers->nodes()) {
    const std::string& name = node.has_name() ? node.name() : node.address();
    page.add("percheron_node_reachable", {{"node", place++ < kRankLabelsMax ? name : "other"}},
             node.reachable() ? 1 : 0);
  }
}

}  // namespace percheron
