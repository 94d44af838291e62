// Runs whose node is lost: another one goes on with them, and the one that comes back heeds that.

#include <fmt/format.h>

#include <algorithm>

#include "actors/node/node_daemon.h"
#include "base/log.h"

namespace percheron {

std::set<std::string> NodeDaemon::nodes_there() {
  std::set<std::string> there = {options_.name};
  for (const proto::NodeRecord& node :
       peers() ? peers()->nodes() : std::vector<proto::NodeRecord>()) {
    if (node.reachable()) there.insert(node.name());
  }
  return there;
}

void NodeDaemon::take_over_orphans() {
  succession_.tick(now());
  const std::vector<PeerLinks::LostNode> lost =
      peers() && !drained_ ? peers()->lost() : std::vector<PeerLinks::LostNode>();
  if (lost.empty()) return;
  std::set<std::string> there = nodes_there();
  for (const std::string& node : drained_nodes()) there.erase(node);
  const std::vector<proto::RunRecord> all = peers()->runs();
  for (const PeerLinks::LostNode& node : lost) {
    for (const proto::RunRecord& run : node.runs) {
      if (!succession_.is_due(run, node.seconds, now())) continue;
      if (succession_of(run, there).node != options_.name) continue;
      // Several nodes may be lost, of which a later one had it.
      if (std::ranges::any_of(all, [&](const auto& other) { return has_moved(run, other); })) {
        continue;
      }
      {
        const std::lock_guard lock(mutex_);
        const proto::RunRecord* const own = book_.find(run.id());
        if (own && has_moved(run, *own)) continue;  // It has been taken over.
      }
      proto::RunRecord taken = taken_over(
          run, options_.name,
          fmt::format("taken over by node {}: node {} can't be reached", options_.name, node.name));
      taken.set_taken_from(node.name);
      const Status adopted = adopt(taken);
      if (adopted.ok() || !not_taken_over_.insert(run.id()).second) continue;
      log_error("run {} of node {} is not taken over: {}", run.id(), node.name, adopted.message());
    }
  }
}

std::vector<proto::RunRecord> NodeDaemon::runs_of_peers() {
  std::vector<proto::RunRecord> runs = peers()->runs();
  std::set<std::string> there = nodes_there(), lost;
  for (const std::string& node : drained_nodes()) there.erase(node);
  for (const PeerLinks::LostNode& node : peers()->lost()) lost.insert(node.name);
  for (proto::RunRecord& run : runs) {
    if (lost.count(run.node()) == 0 || run_is_over(run.report().state())) continue;
    const double wait = run.config().cluster().successor_seconds();
    Succession next = succession_of(run, there);
    if (wait <= 0) next = {"", "cluster.successor_seconds is 0"};
    if (run.released()) next = {"", "it is paused"};
    run.mutable_report()->set_state(proto::RunReport::RECOVERING);
    run.mutable_report()->set_message(
        next.node.empty()
            ? fmt::format("waits for node {}, which can't be reached: {}", run.node(), next.missing)
            : fmt::format("node {} can't be reached: node {} goes on with it after {:g} s",
                          run.node(), next.node, wait));
  }
  return runs;
}

void NodeDaemon::forget_moved_locked() {
  for (const proto::RunRecord& theirs :
       peers() ? peers()->runs() : std::vector<proto::RunRecord>()) {
    proto::RunRecord* const own = book_.find(theirs.id());
    if (!own || !has_moved(*own, theirs)) continue;
    if (!has_supervisor_locked(theirs.id())) {
      forget_moved_locked(theirs.id(), theirs.node());
      continue;
    }
    own->mutable_report()->set_moved_to(theirs.node());
    for (const auto& [key, child] : children_) {
      const bool supervisor = child->endpoint.kind() == proto::Endpoint::SUPERVISOR;
      if (!supervisor || child->endpoint.run() != theirs.id() || !child->killed_for.empty())
        continue;
      kill_locked(*child, "has lost its run to node " + theirs.node());
    }
  }
}

void NodeDaemon::forget_moved_locked(const std::string& run, const std::string& node) {
  log_info("run {} is on node {} now", run, node);
  restart_at_.erase(run);
  supervisions_.erase(run);
  const Status removed = book_.remove(run);
  if (!removed.ok()) log_error("the record of run {}: {}", run, removed.message());
}

Status NodeDaemon::heed_locked(const proto::StartWorker& worker) {
  const auto known = led_by_.find(worker.run());
  if (known != led_by_.end() && known->second.node != worker.supervisor_node() &&
      known->second.generation >= worker.generation()) {
    return failed_precondition("the run is on node " + known->second.node + " now");
  }
  led_by_[worker.run()] = {worker.supervisor_node(), worker.generation()};
  return ok_status();
}

bool NodeDaemon::is_heeded(const proto::Frame& frame) {
  if (frame.from().kind() != proto::Endpoint::SUPERVISOR) return true;
  // What starts a worker says its generation itself; the others are for the supervisor's own node.
  if (frame.has_spawn() || frame.has_report() || frame.has_order_reply()) return true;
  const std::lock_guard lock(mutex_);
  const auto known = led_by_.find(frame.from().run());
  return known == led_by_.end() || known->second.node == frame.from().node();
}

}  // namespace percheron
