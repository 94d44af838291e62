// Runs that several nodes call the same. An id names the processes, logs and features of a run on
// every node, so no two runs of a cluster may share one.

#include <fmt/format.h>

#include "actors/node/endpoint.h"
#include "actors/node/node_daemon.h"
#include "base/log.h"

namespace percheron {
namespace {

constexpr auto kAskTimeout = std::chrono::seconds(3);  // for another node to say what it has

}  // namespace

std::set<std::string> NodeDaemon::names_elsewhere() {
  std::set<std::string> names;
  if (!peers()) return names;
  for (const proto::RunRecord& record : peers()->runs()) names.insert(record.id());
  // One that was submitted a moment ago is not told of yet.
  proto::ControlRequest request;
  request.mutable_list()->set_only_here(true);
  for (const proto::NodeRecord& node : peers()->nodes()) {
    if (node.name().empty() || !node.reachable()) continue;
    const Result<proto::ControlReply> reply = peers()->ask(node.name(), request, kAskTimeout);
    if (!reply.ok()) {
      log_warning("node {} is not asked for its runs: {}", node.name(), reply.status().message());
      continue;
    }
    for (const proto::RunRecord& record : reply->runs()) names.insert(record.id());
  }
  return names;
}

// Nodes that did not know each other, or were asked at the same moment, may have given one name
// twice. The earlier run keeps it.
void NodeDaemon::rename_twins_locked() {
  if (!peers() || book_.all().empty()) return;
  for (const proto::RunRecord& theirs : peers()->runs()) {
    proto::RunRecord* const own = book_.find(theirs.id());
    if (!own || !is_later_twin(*own, theirs) || own->renamed()) continue;
    log_warning("run {} gets another name: node {} has an earlier run of that name", theirs.id(),
                theirs.node());
    if (has_supervisor_locked(theirs.id())) {
      begin_rename_locked(*own);
    } else {
      finish_rename_locked(theirs.id());
    }
  }
  std::vector<std::string> ready;
  for (const proto::RunRecord* record : book_.all()) {
    if (record->renamed() && !has_supervisor_locked(record->id())) ready.push_back(record->id());
  }
  for (const std::string& run : ready) finish_rename_locked(run);
}

// Its processes end after a checkpoint, with which it goes on.
void NodeDaemon::begin_rename_locked(proto::RunRecord& record) {
  record.set_renamed(true);
  record.set_released(true);  // How its supervisor's end is to be understood.
  proto::Frame frame;         // Nobody waits for the answer.
  frame.mutable_order()->set_kind(proto::RunOrder::PAUSE);
  frame.mutable_order()->set_release_devices(true);
  const auto child =
      children_.find(key_of(endpoint_of(options_.name, proto::Endpoint::SUPERVISOR, record.id())));
  if (child == children_.end()) return;
  *frame.mutable_to() = child->second->endpoint;
  child->second->link->send(std::move(frame));
}

void NodeDaemon::finish_rename_locked(const std::string& run) {
  const proto::RunRecord* const record = book_.find(run);
  proto::RunRecord renamed = *record;
  if (run_is_over(record->report().state())) {  // Nobody is in its way any more.
    renamed.clear_renamed();
    const Status kept = book_.put(renamed);
    if (!kept.ok()) log_error("the record of run {}: {}", run, kept.message());
    return;
  }
  std::set<std::string> elsewhere;
  for (const proto::RunRecord& theirs : peers()->runs()) elsewhere.insert(theirs.id());
  const std::string id = book_.free_id(run, elsewhere);
  renamed.set_id(id);
  if (record->renamed()) {  // The pause is begin_rename_locked()'s.
    renamed.clear_released();
    renamed.clear_ended();
  }
  if (!renamed.released()) renamed.mutable_report()->set_state(proto::RunReport::QUEUED);
  renamed.mutable_report()->set_message("was called " + run + ", as another node's run is");
  renamed.clear_renamed();
  const Status kept = book_.put(renamed);
  if (!kept.ok()) {
    if (not_renamed_.insert(run).second) {
      log_error("run {} keeps its name: {}", run, kept.message());
    }
    return;
  }
  log_info("run {} is called {} from now on", run, id);
  restart_at_.erase(run);
  supervisions_.erase(run);
  const Status removed = book_.remove(run);
  if (!removed.ok()) log_error("the record of run {}: {}", run, removed.message());
}

}  // namespace percheron
