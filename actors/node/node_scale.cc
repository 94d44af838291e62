// Other devices for a run that this node has accepted.

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "actors/node/endpoint.h"
#include "actors/node/node_daemon.h"
#include "actors/service/placement_change.h"
#include "base/log.h"

namespace percheron {
namespace {

constexpr auto kReserveTimeout = std::chrono::seconds(3);  // for another node to answer

/// What a change adds, by node, as the nodes are asked for it.
std::map<std::string, proto::ReserveDevices> reservations(const std::string& run,
                                                          const std::string& supervisor_node,
                                                          const PlacementChange& change) {
  std::map<std::string, proto::ReserveDevices> orders;
  for (const auto* added : {&change.add_targets, &change.add_trainers}) {
    for (const PlacedDevices& placed : *added) {
      proto::ReserveDevices& order = orders[placed.node];
      order.set_run(run);
      order.set_supervisor_node(supervisor_node);
      for (std::string& device : device_names(placed.devices)) {
        order.add_devices(std::move(device));
      }
    }
  }
  return orders;
}

}  // namespace

std::map<std::string, std::string> NodeDaemon::owners_in_cluster() {
  std::map<std::string, std::string> owners;
  for (const proto::NodeRecord& node :
       peers() ? peers()->nodes() : std::vector<proto::NodeRecord>()) {
    for (const proto::DeviceRecord& device : node.devices()) {
      if (!device.run().empty()) owners[node.name() + "/" + device.device()] = device.run();
    }
  }
  for (const auto& [device, run] : device_owners()) owners[options_.name + "/" + device] = run;
  const std::lock_guard lock(mutex_);
  for (proto::RunRecord* record : book_.all()) {
    const proto::RunReport::State state = record->report().state();
    if (run_is_over(state) || record->released() || state == proto::RunReport::QUEUED) continue;
    for (const std::string& device : devices_locked(*record)) owners[device] = record->id();
  }
  return owners;
}

// What a supervisor does not see: the other runs, and the cluster's nodes.
Status NodeDaemon::check_change(const std::string& run, const PlacementChange& change) {
  const std::map<std::string, std::string> owners = owners_in_cluster();
  std::vector<std::string> nodes;
  for (const auto* added : {&change.add_targets, &change.add_trainers}) {
    for (const PlacedDevices& placed : *added) nodes.push_back(placed.node);
    for (const std::string& device : device_texts(*added)) {
      const auto owner = owners.find(device);
      if (owner == owners.end() || owner->second == run) continue;
      return failed_precondition(fmt::format("{} belongs to run {}", device, owner->second));
    }
  }
  return check_nodes(nodes);
}

Status NodeDaemon::reserve_here(const proto::ReserveDevices& order) {
  const std::lock_guard lock(mutex_);
  const std::vector<std::string> devices(order.devices().begin(), order.devices().end());
  if (order.release()) {
    claims_.release_reserved(order.run(), devices);
    return ok_status();
  }
  if (drained_) return failed_precondition("node " + options_.name + " is drained");
  const Status reserved = claims_.reserve(order.run(), order.supervisor_node(), devices, now());
  return reserved.ok() ? reserved : failed_precondition(options_.name + "/" + reserved.message());
}

Status NodeDaemon::reserve_on(const std::string& node, const proto::ReserveDevices& order) {
  if (node == options_.name) return reserve_here(order);
  proto::ControlRequest request;
  *request.mutable_reserve() = order;
  PERCHERON_ASSIGN_OR_RETURN(const proto::ControlReply reply,
                             ask_host(node, request, kReserveTimeout));
  return reply.error().empty() ? ok_status() : failed_precondition(reply.error());
}

// The node of a device decides for it, so that of two orders, wherever they are given, one loses.
Status NodeDaemon::reserve(const std::string& run, const PlacementChange& change) {
  std::vector<std::string> reserved;
  const auto orders = reservations(run, options_.name, change);
  for (const auto& [node, order] : orders) {
    const Status status = reserve_on(node, order);
    if (status.ok()) {
      reserved.push_back(node);
      continue;
    }
    for (const std::string& before : reserved) {
      proto::ReserveDevices back = orders.at(before);
      back.set_release(true);
      const Status released = reserve_on(before, back);
      if (!released.ok()) log_warning("devices of node {}: {}", before, released.message());
    }
    return status;
  }
  return ok_status();
}

void NodeDaemon::release_reserved(const std::string& run, const PlacementChange& change) {
  for (auto& [node, order] : reservations(run, options_.name, change)) {
    proto::ReserveDevices back = order;
    back.set_release(true);
    const Status released = reserve_on(node, back);
    if (!released.ok()) {
      log_warning("devices of node {} stay reserved for run {} for {:.0f} s at most: {}", node, run,
                  DeviceClaims::kReservedSeconds, released.message());
    }
  }
}

Status NodeDaemon::scale(const proto::OrderScale& order, std::chrono::milliseconds timeout,
                         proto::ControlReply& reply) {
  const std::string& run = order.run();
  reply.set_run(run);
  proto::Run config;
  bool goes_on = false;
  {
    const std::lock_guard lock(mutex_);
    const proto::RunRecord* const record = book_.find(run);
    if (!record) return not_found("there is no run " + run);
    config = record->config();
    goes_on = has_supervisor_locked(run);
  }
  PERCHERON_ASSIGN_OR_RETURN(const PlacementChange change,
                             read_change(order.change(), options_.name, config));
  PERCHERON_RETURN_IF_ERROR(check_change(run, change));
  // A run without a supervisor holds nothing: it waits for its devices.
  if (!goes_on) return ask_for_change(order, change, timeout, reply);
  PERCHERON_RETURN_IF_ERROR(reserve(run, change));
  const Status done = ask_for_change(order, change, timeout, reply);
  // Else the order stands.
  if (done.code() != StatusCode::kUnavailable) release_reserved(run, change);
  return done;
}

Status NodeDaemon::ask_for_change(const proto::OrderScale& order, const PlacementChange& change,
                                  std::chrono::milliseconds timeout, proto::ControlReply& reply) {
  const std::string& run = order.run();
  std::unique_lock lock(mutex_);
  std::optional<proto::RunOrderReply> answer;
  if (has_supervisor_locked(run)) {
    proto::Frame frame;
    *frame.mutable_scale() = order.change();
    PERCHERON_ASSIGN_OR_RETURN(answer, ask_supervisor(lock, run, std::move(frame), timeout,
                                                      "it is done as soon as its workers allow"));
  }
  proto::RunRecord* record = book_.find(run);
  if (!record) return not_found("run " + run + " is forgotten");
  if (!answer) PERCHERON_RETURN_IF_ERROR(scale_idle_run_locked(*record, change));
  if (answer && answer->has_error()) return failed_precondition(answer->error());
  PERCHERON_ASSIGN_OR_RETURN(const ClusterPlacement placement,
                             read_placement(record->config(), options_.name));
  for (const PlacedDevices& placed : placement.targets) reply.add_targets(placed.text());
  for (const PlacedDevices& placed : placement.trainers) reply.add_trainers(placed.text());
  reply.set_text(fmt::format("has targets {} and trainers {}{}", fmt::join(reply.targets(), ", "),
                             fmt::join(reply.trainers(), ", "), answer ? "" : " when it goes on"));
  reply.set_step(record->report().step());
  return ok_status();
}

// The change of a run without a supervisor is its next start's.
Status NodeDaemon::scale_idle_run_locked(proto::RunRecord& record, const PlacementChange& change) {
  if (record.report().state() == proto::RunReport::DONE) {
    return failed_precondition("run " + record.id() + " is done");
  }
  PERCHERON_ASSIGN_OR_RETURN(const ClusterPlacement now,
                             read_placement(record.config(), options_.name));
  PERCHERON_ASSIGN_OR_RETURN(const ClusterPlacement next,
                             change_placement(now, change, record.config()));
  set_placement(next, *record.mutable_config());
  changed_.notify_all();
  return book_.save(record);
}

void NodeDaemon::take_placement_locked(const std::string& run,
                                       const proto::RunPlacement& placement) {
  proto::RunRecord* record = book_.find(run);
  if (!record) return;
  proto::Placement& kept = *record->mutable_config()->mutable_placement();
  kept.clear_devices();
  *kept.mutable_targets() = placement.targets();
  *kept.mutable_trainers() = placement.trainers();
  *record->mutable_former_nodes() = placement.former_nodes();
  const Status saved = book_.save(*record);
  if (!saved.ok()) log_error("the record of run {} is not saved: {}", run, saved.message());
}

void NodeDaemon::end_worker(const proto::Frame& frame) {
  const std::string& device = frame.end_worker().device();
  const proto::Endpoint worker =
      endpoint_of(options_.name, proto::Endpoint::WORKER, frame.from().run(), device);
  {
    const std::lock_guard lock(mutex_);
    const Result<std::vector<DeviceId>> devices = parse_device_group(device);
    if (devices.ok()) claims_.release(frame.from().run(), device_names(*devices));
    const auto child = children_.find(key_of(worker));
    if (child != children_.end()) {
      child->second->tell_end = true;
      return end_child_locked(*child->second);
    }
  }
  proto::Frame reply;
  *reply.mutable_to() = frame.from();
  *reply.mutable_from() = worker;
  reply.mutable_ended()->set_device(device);
  if (frame.end_worker().has_attempt()) {
    reply.mutable_ended()->set_attempt(frame.end_worker().attempt());
  }
  reply.mutable_ended()->set_how("it had ended");
  route(std::move(reply));
}

}  // namespace percheron
