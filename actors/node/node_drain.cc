// A node that is to be left alone: its runs go elsewhere, or wait.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "actors/node/endpoint.h"
#include "actors/node/node_daemon.h"
#include "actors/node/successor.h"
#include "actors/service/placement_change.h"
#include "base/log.h"

namespace percheron {
namespace {

constexpr auto kAdoptTimeout = std::chrono::seconds(30);
constexpr auto kAnswerTime = std::chrono::seconds(3);  // beside what was waited for
// Nodes know each other after a second or two.
constexpr auto kAskAgain = std::chrono::milliseconds(200);
constexpr int kAskTries = 25;

std::string drained_text(const std::string& node) { return "node " + node + " is drained"; }

/// All that a run has on a node, to be taken out.
PlacementChange everything_on(const std::string& node, const ClusterPlacement& placement) {
  PlacementChange change;
  const auto add_new = [&node](const std::vector<PlacedDevices>& from,
                               std::vector<PlacedDevices>& to) {
    for (const PlacedDevices& placed : from) {
      const bool known = std::ranges::find(to, placed) != to.end();
      if (placed.node == node && !known) to.push_back(placed);
    }
  };
  add_new(placement.targets, change.remove_targets);
  add_new(placement.trainers, change.remove_trainers);
  return change;
}

proto::ScaleRun order_of(const PlacementChange& change) {
  proto::ScaleRun order;
  for (const PlacedDevices& placed : change.remove_targets) {
    order.add_remove_targets(placed.text());
  }
  for (const PlacedDevices& placed : change.remove_trainers) {
    order.add_remove_trainers(placed.text());
  }
  return order;
}

bool is_empty(const PlacementChange& change) {
  return change.remove_targets.empty() && change.remove_trainers.empty();
}

}  // namespace

std::string NodeDaemon::drained_path() const {
  return join_path(options_.state_directory, "drained");
}

std::set<std::string> NodeDaemon::drained_nodes() {
  std::set<std::string> nodes;
  if (drained_) nodes.insert(options_.name);
  for (const proto::NodeRecord& node :
       peers() ? peers()->nodes() : std::vector<proto::NodeRecord>()) {
    if (node.drained()) nodes.insert(node.name());
  }
  return nodes;
}

std::vector<proto::RunRecord> NodeDaemon::runs_of_others() {
  // Asked for: one that was submitted a moment ago is not told of yet.
  proto::ControlRequest request;
  request.mutable_list()->set_only_here(true);
  std::vector<proto::RunRecord> runs;
  for (const proto::NodeRecord& node :
       peers() ? peers()->nodes() : std::vector<proto::NodeRecord>()) {
    // Also one that has not spoken yet: the first link between two nodes is one way for a moment.
    if (node.name().empty()) continue;
    const Result<proto::ControlReply> reply = peers()->ask(node.name(), request, kAdoptTimeout);
    if (!reply.ok()) {
      log_warning("node {} is not asked for its runs: {}", node.name(), reply.status().message());
      continue;
    }
    runs.insert(runs.end(), reply->runs().begin(), reply->runs().end());
  }
  return runs;
}

std::map<std::string, std::string> NodeDaemon::guests() {
  std::map<std::string, std::string> guests;
  for (const proto::RunRecord& record : runs_of_others()) {
    const Result<ClusterPlacement> placement = read_placement(record.config(), record.node());
    if (run_is_over(record.report().state()) || !placement.ok()) continue;
    if (!is_empty(everything_on(options_.name, *placement))) guests[record.id()] = record.node();
  }
  // A worker may be here before this node knows the one that sent it.
  const std::lock_guard lock(mutex_);
  for (const auto& [key, child] : children_) {
    const std::string& node = child->worker.supervisor_node();
    if (node.empty() || node == options_.name || child->unwanted) continue;
    guests.emplace(child->endpoint.run(), node);
  }
  return guests;
}

Result<proto::ControlReply> NodeDaemon::ask_host(const std::string& node,
                                                 const proto::ControlRequest& request,
                                                 std::chrono::milliseconds timeout) {
  for (int tries = 1;; ++tries) {
    Result<proto::ControlReply> reply = peers()->ask(node, request, timeout);
    if (reply.ok() || reply.status().code() != StatusCode::kUnavailable || tries == kAskTries) {
      return reply;
    }
    std::this_thread::sleep_for(kAskAgain);
  }
}

Status NodeDaemon::drain(const proto::DrainNode& order, std::chrono::milliseconds timeout,
                         proto::ControlReply& reply) {
  if (order.undo()) {
    drained_ = false;
    PERCHERON_RETURN_IF_ERROR(files_.remove_all(drained_path()));
    reply.set_text("takes workers again");
    return ok_status();
  }
  drained_ = true;
  PERCHERON_RETURN_IF_ERROR(write_text_atomically(files_, drained_path(), "drained\n"));
  std::vector<std::string> done, failed;
  const auto note = [&](const std::string& run, const Result<std::string>& what) {
    if (!what.ok()) {
      failed.push_back(fmt::format("run {}: {}", run, what.status().message()));
    } else if (!what->empty()) {
      done.push_back(fmt::format("run {} {}", run, *what));
    }
  };
  for (const proto::RunRecord& record : own_runs()) {
    if (!run_is_over(record.report().state())) note(record.id(), move_away(record.id(), timeout));
  }
  for (const auto& [run, supervisor_node] : guests()) {
    proto::ControlRequest request;
    request.mutable_leave()->set_run(run);
    request.mutable_leave()->set_node(options_.name);
    request.set_timeout_seconds(static_cast<double>(timeout.count()) * 1e-3);
    const Result<proto::ControlReply> theirs =
        ask_host(supervisor_node, request, timeout + kAnswerTime);
    Result<std::string> what =
        theirs.ok() ? Result<std::string>(theirs->text()) : Result<std::string>(theirs.status());
    if (theirs.ok() && !theirs->error().empty()) what = failed_precondition(theirs->error());
    note(run, what);
  }
  if (!failed.empty()) {
    return failed_precondition(
        fmt::format("{0}, but not all runs have left it; `percheron drain {1}` tries again, with "
                    "--undo it takes workers again and runs that wait for it go on: {2}",
                    drained_text(options_.name), options_.name, fmt::join(failed, "; ")));
  }
  reply.set_text(done.empty() ? "is drained; no run had anything there"
                              : fmt::format("is drained: {}", fmt::join(done, "; ")));
  return ok_status();
}

// --- runs whose supervisor is of this node -------------------------------------------------------

Result<std::string> NodeDaemon::leave(const std::string& run, const std::string& node,
                                      std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  proto::RunRecord* record = book_.find(run);
  if (!record) return not_found("there is no run " + run);
  PERCHERON_ASSIGN_OR_RETURN(const ClusterPlacement now,
                             read_placement(record->config(), options_.name));
  const PlacementChange change = everything_on(node, now);
  if (is_empty(change)) return std::string();
  const bool others = change_placement(now, change, record->config()).ok();
  if (!has_supervisor_locked(run)) {
    if (!others) return std::string("waits: " + drained_text(node));
    PERCHERON_RETURN_IF_ERROR(scale_idle_run_locked(*record, change));
    return std::string("has left");
  }
  if (!others) {
    PERCHERON_RETURN_IF_ERROR(rest(lock, run, drained_text(node), timeout));
    return std::string("waits, after a checkpoint");
  }
  proto::Frame frame;
  *frame.mutable_scale() = order_of(change);
  PERCHERON_ASSIGN_OR_RETURN(const std::optional<proto::RunOrderReply> answer,
                             ask_supervisor(lock, run, std::move(frame), timeout,
                                            "its workers leave as soon as it can do without"));
  if (answer && answer->has_error()) return failed_precondition(answer->error());
  if (!answer) return unavailable("its supervisor ended meanwhile");
  return std::string("has left");
}

Status NodeDaemon::rest(std::unique_lock<std::mutex>& lock, const std::string& run,
                        const std::string& why, std::chrono::milliseconds timeout) {
  proto::RunRecord* record = book_.find(run);
  if (!record) return not_found("there is no run " + run);
  if (has_supervisor_locked(run)) {
    proto::Frame frame;
    frame.mutable_order()->set_kind(proto::RunOrder::PAUSE);
    frame.mutable_order()->set_release_devices(true);
    record->set_rests(why);  // How its supervisor's end is to be understood.
    PERCHERON_RETURN_IF_ERROR(
        ask_supervisor(lock, run, std::move(frame), timeout,
                       "it writes a checkpoint after the step that is under way, and waits then")
            .status());
    // Its output is locked until the process is gone.
    if (!changed_.wait_for(lock, timeout, [&] { return !has_supervisor_locked(run); })) {
      return unavailable("it has written its checkpoint, but its supervisor does not end");
    }
    return book_.find(run) ? ok_status() : not_found("run " + run + " is forgotten");
  }
  if (run_is_over(record->report().state())) return ok_status();
  record->clear_ended();
  record->mutable_report()->set_state(proto::RunReport::QUEUED);
  record->mutable_report()->set_message(why);
  restart_at_.erase(run);
  changed_.notify_all();
  return book_.save(*record);
}

std::string NodeDaemon::successor_of(const ClusterPlacement& placement) {
  std::set<std::string> there;
  for (const proto::NodeRecord& node :
       peers() ? peers()->nodes() : std::vector<proto::NodeRecord>()) {
    if (node.reachable() && !node.drained()) there.insert(node.name());
  }
  for (const std::string& node : placement.nodes()) {
    if (there.count(node) == 0) return {};  // It could not go on there either.
  }
  const std::vector<std::string> nodes = placement.nodes();
  return *std::ranges::min_element(nodes);
}

Result<std::string> NodeDaemon::move_away(const std::string& run,
                                          std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  proto::RunRecord* record = book_.find(run);
  if (!record || run_is_over(record->report().state())) return std::string();
  const bool paused = record->released();
  PERCHERON_ASSIGN_OR_RETURN(const ClusterPlacement now,
                             read_placement(record->config(), options_.name));
  const PlacementChange change = everything_on(options_.name, now);
  const Result<ClusterPlacement> next = is_empty(change)
                                            ? Result<ClusterPlacement>(now)
                                            : change_placement(now, change, record->config());
  const std::string destination = next.ok() ? successor_of(*next) : std::string();
  if (!paused) {
    PERCHERON_RETURN_IF_ERROR(rest(lock, run, drained_text(options_.name), timeout));
    record = book_.find(run);
    if (!record || run_is_over(record->report().state())) return std::string("has ended");
  }
  if (destination.empty()) return std::string("waits, after a checkpoint");
  proto::RunRecord moved = taken_over(
      *record, destination, fmt::format("went from node {} to {}", options_.name, destination));
  set_placement(*next, *moved.mutable_config());
  lock.unlock();
  proto::ControlRequest request;
  *request.mutable_adopt()->mutable_record() = moved;
  PERCHERON_ASSIGN_OR_RETURN(const proto::ControlReply reply,
                             peers()->ask(destination, request, kAdoptTimeout));
  if (!reply.error().empty()) return failed_precondition(reply.error());
  lock.lock();
  supervisions_.erase(run);
  PERCHERON_RETURN_IF_ERROR(book_.remove(run));
  return std::string("is on node " + destination + " now");
}

Status NodeDaemon::adopt(const proto::RunRecord& record) {
  const std::lock_guard lock(mutex_);
  if (drained_) return failed_precondition(drained_text(options_.name));
  if (book_.find(record.id())) {
    return failed_precondition(
        fmt::format("node {} has another run {}", options_.name, record.id()));
  }
  PERCHERON_RETURN_IF_ERROR(book_.put(record));
  log_info("run {} {}", record.id(), record.report().message());
  changed_.notify_all();
  return ok_status();
}

}  // namespace percheron
