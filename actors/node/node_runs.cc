// Which runs of a node begin, wait, go on and end.

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "actors/node/endpoint.h"
#include "actors/node/node_daemon.h"
#include "actors/service/placement.h"
#include "base/log.h"

namespace percheron {
namespace {

// The first of `drained` that a run needs; empty if none.
std::string drained_node_of(const std::set<std::string>& devices, const std::string& supervisor,
                            const std::set<std::string>& drained) {
  if (drained.count(supervisor) != 0) return supervisor;
  for (const std::string& device : devices) {
    const std::string node = device.substr(0, device.find('/'));
    if (drained.count(node) != 0) return node;
  }
  return {};
}

}  // namespace

Status NodeDaemon::start_supervisor_locked(proto::RunRecord& record) {
  proto::Frame first;
  proto::StartSupervisor& start = *first.mutable_start_supervisor();
  start.set_run(record.id());
  start.set_node(options_.name);
  start.set_generation(record.generation());
  start.set_taken_over(record.has_taken_from());
  *start.mutable_config() = record.config();
  PERCHERON_RETURN_IF_ERROR(start_child_locked(
      endpoint_of(options_.name, proto::Endpoint::SUPERVISOR, record.id()), std::move(first),
      "supervisor", logs_.path_of(record.id(), "supervisor"), {}));
  record.mutable_report()->set_state(proto::RunReport::STARTING);
  record.clear_released();
  record.clear_ended();
  return book_.save(record);
}

void NodeDaemon::supervisor_ended_locked(const ChildPtr& child, bool well, const std::string& how) {
  const std::string& run = child->endpoint.run();
  proto::RunRecord* record = book_.find(run);
  if (!record) return;
  proto::RunReport& report = *record->mutable_report();
  end_run_locked(run, options_.name);
  if (report.has_moved_to()) return forget_moved_locked(run, report.moved_to());
  if (peers()) {
    std::set<std::string> nodes(record->former_nodes().begin(), record->former_nodes().end());
    for (const std::string& device : devices_locked(*record)) {
      nodes.insert(device.substr(0, device.find('/')));
    }
    nodes.erase(options_.name);
    for (const std::string& node : nodes) {
      proto::Frame frame;
      *frame.mutable_to() = endpoint_of(node, proto::Endpoint::DAEMON, "");
      *frame.mutable_from() = child->endpoint;
      frame.mutable_end_run();
      const Status sent = peers()->send(node, std::move(frame));
      if (!sent.ok())
        log_warning("{} is not told that run {} ended: {}", node, run, sent.message());
    }
  }
  record->clear_former_nodes();
  if (run_is_over(report.state()) || record->released()) {
    record->set_ended(clock_.unix_seconds());
    if (!run_is_over(report.state()) && report.state() != proto::RunReport::PAUSED) {
      // It died before it could say so.
      report.set_state(proto::RunReport::PAUSED);
      report.set_message("its devices are given back; its supervisor ended: " + how);
    }
  } else if (record->has_rests()) {
    report.set_state(proto::RunReport::QUEUED);
    report.set_message(record->rests());
    restart_at_.erase(run);
  } else if (shutting_down_) {
    report.set_state(proto::RunReport::QUEUED);
    report.set_message("the daemon ended");
  } else {
    // It died, or ended because a worker did: it goes on from its newest checkpoint.
    Supervision& supervision = supervision_locked(run);
    RestartHistory& restarts = supervision.restarts;
    const std::optional<double> wait = restarts.ended(now(), supervision.step);
    if (!wait) {
      report.set_state(proto::RunReport::FAILED);
      report.set_message(
          fmt::format("its supervisor ended {} times within {:.0f} s, the last time "
                      "by {}; `percheron resume {}` tries again",
                      restarts.count(), options_.restarts.window_seconds, how, run));
      record->set_ended(clock_.unix_seconds());
    } else {
      restart_at_[run] = now() + *wait;
      record->set_supervisor_restarts(record->supervisor_restarts() + 1);
      report.set_state(proto::RunReport::RECOVERING);
      if (report.message().empty() || !well) report.set_message("its supervisor ended: " + how);
    }
  }
  record->clear_rests();
  changed_.notify_all();
  if (run_is_over(report.state())) supervisions_.erase(run);
  const Status saved = book_.save(*record);
  if (!saved.ok()) log_error("the record of run {} is not saved: {}", run, saved.message());
}

NodeDaemon::Supervision& NodeDaemon::supervision_locked(const std::string& run) {
  return supervisions_.try_emplace(run, Supervision{RestartHistory(options_.restarts)})
      .first->second;
}

void NodeDaemon::queue_recovering_locked() {
  for (auto run = restart_at_.begin(); run != restart_at_.end();) {
    proto::RunRecord* record = book_.find(run->first);
    if (now() < run->second) {
      ++run;
      continue;
    }
    if (record && record->report().state() == proto::RunReport::RECOVERING) {
      record->mutable_report()->set_state(proto::RunReport::QUEUED);
    }
    run = restart_at_.erase(run);
  }
}

void NodeDaemon::take_report_locked(const std::string& run, const proto::RunReport& report) {
  proto::RunRecord* record = book_.find(run);
  if (!record) return;
  Supervision& supervision = supervision_locked(run);
  supervision.step = std::max(supervision.step, report.step());
  if (report.state() == proto::RunReport::RUNNING) {
    supervision.restarts.working(now(), supervision.step);
  }
  const bool changed = record->report().state() != report.state();
  const std::string moved_to = record->report().moved_to();
  *record->mutable_report() = report;
  if (!moved_to.empty()) record->mutable_report()->set_moved_to(moved_to);
  changed_.notify_all();
  if (!changed) return;
  log_info("run {} is {}{}{}", run, state_name(report.state()),
           report.message().empty() ? "" : ": ", report.message());
  const Status saved = book_.save(*record);
  if (!saved.ok()) log_error("the record of run {} is not saved: {}", run, saved.message());
}

std::set<std::string> NodeDaemon::devices_locked(const proto::RunRecord& record) {
  std::set<std::string> devices;
  const Result<ClusterPlacement> placement = read_placement(record.config(), record.node());
  if (!placement.ok()) return devices;
  for (const auto& [placed, roles] : placement->workers()) {
    for (std::string& device : placed.device_texts()) devices.insert(std::move(device));
  }
  return devices;
}

std::map<std::string, std::string> NodeDaemon::device_owners() {
  const std::lock_guard lock(mutex_);
  return device_owners_locked();
}

std::map<std::string, std::string> NodeDaemon::device_owners_locked() {
  std::map<std::string, std::string> owners = claims_.owners(now());
  for (const auto& [key, child] : children_) {  // Also those that are ending.
    for (const DeviceId id : child->devices) owners.emplace(to_string(id), child->endpoint.run());
  }
  return owners;
}

// What runs have now, "node/cpu:0", as far as this node knows.
std::map<std::string, std::string> NodeDaemon::taken_devices_locked() {
  std::map<std::string, std::string> taken;
  const auto is_queued = [this](const std::string& run) {
    const proto::RunRecord* const record = book_.find(run);
    return record && record->report().state() == proto::RunReport::QUEUED;
  };
  for (proto::RunRecord* record : book_.all()) {
    const proto::RunReport::State state = record->report().state();
    if (run_is_over(state) || record->released() || is_queued(record->id())) continue;
    for (const std::string& device : devices_locked(*record)) taken[device] = record->id();
  }
  for (const auto& [device, run] : device_owners_locked()) {
    taken.emplace(options_.name + "/" + device, run);
  }
  for (const proto::NodeRecord& node :
       peers() ? peers()->nodes() : std::vector<proto::NodeRecord>()) {
    if (!node.reachable()) continue;
    for (const proto::DeviceRecord& device : node.devices()) {
      // What it says of a run of this node that waits is of a moment ago.
      if (device.run().empty() || is_queued(device.run())) continue;
      taken.emplace(node.name() + "/" + device.device(), device.run());
    }
  }
  return taken;
}

// Runs wait until the devices that they name are free, the oldest first.
void NodeDaemon::start_queued_locked() {
  if (std::ranges::none_of(book_.all(), [](const proto::RunRecord* record) {
        return record->report().state() == proto::RunReport::QUEUED;
      })) {
    return;
  }
  std::map<std::string, std::string> taken = taken_devices_locked();
  const std::set<std::string> drained = drained_nodes();
  for (proto::RunRecord* record : book_.all()) {
    if (record->report().state() != proto::RunReport::QUEUED) continue;
    const std::set<std::string> devices = devices_locked(*record);
    const std::string away = drained_node_of(devices, record->node(), drained);
    if (!away.empty()) {
      record->mutable_report()->set_message("node " + away + " is drained");
      continue;
    }
    const auto busy = std::find_if(devices.begin(), devices.end(),
                                   [&](const auto& device) { return taken.count(device) != 0; });
    if (busy != devices.end()) {
      record->mutable_report()->set_message(
          fmt::format("waits for {}, which run {} has", *busy, taken[*busy]));
      for (const std::string& device : devices) taken.emplace(device, record->id());
      continue;
    }
    if (const std::string why = unreachable_node_locked(*record, devices); !why.empty()) {
      record->mutable_report()->set_message("waits for node " + why);
      continue;  // Others may have its devices meanwhile.
    }
    record->mutable_report()->clear_message();
    const Status started = start_supervisor_locked(*record);
    if (!started.ok()) {
      record->mutable_report()->set_state(proto::RunReport::FAILED);
      record->mutable_report()->set_message(started.message());
    }
    for (const std::string& device : devices) taken[device] = record->id();
  }
}

}  // namespace percheron
