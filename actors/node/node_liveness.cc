// Who lives: processes that hang without dying are found by their silence, or by those who wait for
// them, and ended, so that what follows is that of any death; nodes that can't be reached.

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>

#include "actors/node/endpoint.h"
#include "actors/node/node_daemon.h"
#include "actors/node/successor.h"
#include "base/log.h"

namespace percheron {
namespace {

constexpr double kOrphanSeconds = 3;  // nodes tell of their runs twice a second

// As the process calls itself: "worker RUN/cpu:0".
std::string name_of(const proto::Endpoint& endpoint) {
  if (endpoint.kind() == proto::Endpoint::SUPERVISOR) return "supervisor " + endpoint.run();
  return "worker " + endpoint.run() + "/" + endpoint.device();
}

}  // namespace

void NodeDaemon::alive(const Child& child) {
  const std::lock_guard lock(mutex_);
  silence_.heard(child.process->pid(), now());
}

void NodeDaemon::kill_locked(Child& child, const std::string& why) {
  if (child.ended) return;
  log_warning("{} {}: it is ended", name_of(child.endpoint), why);
  child.killed_for = why;
  silence_.forget(child.process->pid());
  child.process->signal(SIGKILL);
}

void NodeDaemon::end_silent_locked() {
  for (const auto& [key, child] : children_) {
    // Its signs of life wait behind a frame that this daemon itself is at.
    if (child->link->turn().deals_now()) silence_.heard(child->process->pid(), now());
  }
  for (int64_t pid : silence_.take_silent(now())) {
    for (const auto& [key, child] : children_) {
      if (child->process->pid() != pid) continue;
      kill_locked(*child, fmt::format("has been silent for {:.0f} s", options_.silence_seconds));
    }
  }
}

void NodeDaemon::end_orphans_locked() {
  PeerLinks* const links = peers();
  const bool guests = std::ranges::any_of(
      led_by_, [&](const auto& entry) { return entry.second.node != options_.name; });
  if (!links || !guests) return;
  for (const proto::RunRecord& theirs : links->runs()) {
    const auto led = led_by_.find(theirs.id());
    if (led == led_by_.end() || led->second.node != theirs.node()) continue;
    if (theirs.node() == options_.name || !run_is_over(theirs.report().state())) continue;
    // Of a run that was resumed a moment ago its node may not have told yet.
    const bool fresh = std::ranges::any_of(children_, [&](const auto& entry) {
      return entry.second->endpoint.run() == theirs.id() &&
             now() - entry.second->started < kOrphanSeconds;
    });
    if (fresh) continue;
    log_info("run {} is over, as node {} says: what it had here is ended", theirs.id(),
             theirs.node());
    end_run_locked(theirs.id(), theirs.node());
  }
}

void NodeDaemon::kill_worker(const std::string& run, const proto::KillWorker& order) {
  proto::Endpoint endpoint;
  endpoint.set_kind(proto::Endpoint::WORKER);
  endpoint.set_run(run);
  endpoint.set_device(order.device());
  const std::lock_guard lock(mutex_);
  const auto child = children_.find(key_of(endpoint));
  if (child == children_.end() || child->second->worker.attempt() != order.attempt()) return;
  kill_locked(*child->second, order.why());
}

void NodeDaemon::node_lost(const std::string& node) {
  std::vector<proto::Frame> frames;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, child] : children_) {
      if (child->endpoint.kind() != proto::Endpoint::SUPERVISOR) continue;
      proto::Frame frame;  // of no device: of all that the run has there
      *frame.mutable_to() = child->endpoint;
      *frame.mutable_from() = endpoint_of(node, proto::Endpoint::DAEMON, child->endpoint.run());
      frame.mutable_ended()->set_how("node " + node + " can't be reached");
      frame.mutable_ended()->set_unreachable(true);
      frames.push_back(std::move(frame));
    }
    // The supervisor of these is on the lost node: it starts new ones when it is back.
    claims_.node_lost(node);
    for (const auto& [key, child] : children_) {
      if (child->endpoint.kind() == proto::Endpoint::WORKER &&
          child->worker.supervisor_node() == node) {
        end_child_locked(*child);
      }
    }
    // Nobody may ever say that their features are of no more use: the run may end meanwhile.
    for (const auto& [run, leader] : led_by_) {
      if (leader.node == node) features_.release_run(run);
    }
  }
  for (proto::Frame& frame : frames) route(std::move(frame));
}

std::string NodeDaemon::unreachable_node_locked(const proto::RunRecord& record,
                                                const std::set<std::string>& devices) {
  const std::set<std::string> reachable = nodes_there();
  std::string missing;  // what a successor can't do without
  if (record.has_taken_from()) {
    const Succession now = succession_of(record, reachable);
    if (now.missing.empty()) return "";
    missing = ": " + now.missing;
  }
  for (const std::string& device : devices) {
    const std::string node = device.substr(0, device.find('/'));
    if (reachable.count(node) == 0) return node + ", which can't be reached" + missing;
  }
  return "";
}

}  // namespace percheron
