// What a node does for operators.

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <utility>

#include "actors/node/endpoint.h"
#include "actors/node/node_daemon.h"
#include "actors/service/placement.h"
#include "actors/service/run_owner.h"

namespace percheron {
namespace {

constexpr double kSecondsMax = 1e6;                    // that anybody waits
constexpr auto kAskTimeout = std::chrono::seconds(3);  // for another node to say what it has
constexpr size_t kLogBytesMax = size_t{512} << 10;     // of one answer

// A node that is lost may say so of a run that another one has by now.
bool is_outdated(const proto::RunRecord& record, const std::vector<proto::RunRecord>& runs) {
  return std::any_of(runs.begin(), runs.end(),
                     [&](const proto::RunRecord& other) { return has_moved(record, other); });
}

// What follows an order that was not obeyed in time.
std::string standing_order(const proto::RunOrder& order, const std::string& run) {
  switch (order.kind()) {
    case proto::RunOrder::PAUSE:
      if (!order.release_devices()) return "it pauses after the step that is under way";
      return "it writes a checkpoint after the step that is under way and gives its devices back; "
             "`percheron resume " +
             run + "` lets it go on after that";
    case proto::RunOrder::RESUME: return "it goes on as soon as it can";
    case proto::RunOrder::SNAPSHOT: return "a checkpoint follows the step that is under way";
    case proto::RunOrder::STOP:
    case proto::RunOrder::STOP_NOW: return "it ends as soon as it can";
  }
  return {};
}

// "runs/demo" names a run "demo".
std::string default_name(const proto::Run& run) {
  std::string directory = run.output().directory();
  while (directory.size() > 1 && directory.back() == '/') directory.pop_back();
  return directory.substr(directory.rfind('/') + 1);
}

// The process of this node that has a device: that of a target on several.
std::string process_with(const std::string& device, const std::string& node,
                         const proto::RunReport& report) {
  const Result<DeviceId> wanted = parse_device_id(device);
  if (!wanted.ok()) return device;
  for (const proto::WorkerState& worker : report.workers()) {
    const Result<std::vector<DeviceId>> devices = parse_device_group(worker.device());
    if (worker.node() != node || !devices.ok()) continue;
    if (std::ranges::find(*devices, *wanted) != devices->end()) return worker.device();
  }
  return device;
}

// Of a run whose supervisor decodes prompts for its report, and hears no orders any more; else
// none.
std::optional<Status> order_after_last_step(const proto::RunRecord& record,
                                            const proto::RunOrder& order,
                                            proto::ControlReply& reply) {
  const proto::RunReport& report = record.report();
  if (report.state() != proto::RunReport::RUNNING || report.phase() != "ended") return std::nullopt;
  reply.set_step(report.step());
  switch (order.kind()) {
    case proto::RunOrder::STOP_NOW:
    case proto::RunOrder::STOP:
      reply.set_text("has done its last step, and ends with its report");
      return ok_status();
    default:
      return failed_precondition("run " + record.id() +
                                 " has done its last step and decodes prompts for its report: its "
                                 "newest checkpoint is " +
                                 report.latest_checkpoint());
  }
}

}  // namespace

void add_device(const proto::DeviceState& device, proto::NodeRecord& record) {
  proto::DeviceRecord& entry = *record.add_devices();
  entry.set_device(device.device());
  entry.set_run(device.run());
  *entry.mutable_facts() = device.facts();
}

std::vector<proto::DeviceState> NodeDaemon::devices() {
  const DeviceBook* book = devices_.load();
  DeviceFactsMap facts = book ? book->devices() : DeviceFactsMap();
  const std::map<std::string, std::string> owners = device_owners();
  for (const auto& [device, run] : owners) facts[device];  // Logical ones, too: cpu:1
  std::vector<proto::DeviceState> devices;
  for (const auto& [name, known] : facts) {
    proto::DeviceState& device = devices.emplace_back();
    device.set_device(name);
    if (const auto owner = owners.find(name); owner != owners.end()) device.set_run(owner->second);
    *device.mutable_facts() = known;
  }
  return devices;
}

std::vector<proto::RunRecord> NodeDaemon::own_runs() {
  const std::lock_guard lock(mutex_);
  std::vector<proto::RunRecord> runs;
  for (const proto::RunRecord* record : book_.all()) runs.push_back(*record);
  return runs;
}

std::string NodeDaemon::node_of(const std::string& run) {
  {
    const std::lock_guard lock(mutex_);
    if (run.empty() || book_.find(run)) return {};
  }
  // A node that is lost may have had it before.
  const proto::RunRecord* latest = nullptr;
  const std::vector<proto::RunRecord> theirs =
      peers() ? peers()->runs() : std::vector<proto::RunRecord>();
  for (const proto::RunRecord& record : theirs) {
    if (record.id() != run) continue;
    if (!latest || record.generation() > latest->generation()) latest = &record;
  }
  if (latest) return latest->node();
  // One that was submitted a moment ago is not told of yet.
  for (const proto::NodeRecord& node :
       peers() ? peers()->nodes() : std::vector<proto::NodeRecord>()) {
    if (node.name().empty()) continue;
    proto::ControlRequest request;
    request.mutable_list()->set_run(run);
    request.mutable_list()->set_only_here(true);
    const Result<proto::ControlReply> reply = peers()->ask(node.name(), request, kAskTimeout);
    if (reply.ok() && reply->runs_size() > 0) return node.name();
  }
  return {};
}

proto::ControlReply NodeDaemon::answer(const proto::ControlRequest& request,
                                       std::chrono::milliseconds timeout) {
  const std::string run = request.has_order()   ? request.order().run()
                          : request.has_scale() ? request.scale().run()
                          : request.has_log()   ? request.log().run()
                          : request.has_list()  ? request.list().run()
                                                : std::string();
  const bool here = request.has_list() && request.list().only_here();
  std::string node = here ? std::string() : node_of(run);
  if (request.has_drain() && request.drain().node() != options_.name) {
    node = request.drain().node();
    const std::vector<std::string> known = known_nodes();
    if (std::find(known.begin(), known.end(), node) == known.end()) {
      proto::ControlReply reply;
      reply.set_request(request.request());
      reply.set_error(
          fmt::format("there is no node '{}' in this cluster: {}", node, fmt::join(known, ", ")));
      return reply;
    }
  }
  for (const double seconds : {request.timeout_seconds(), request.scale().timeout_seconds()}) {
    if (!(seconds > 0)) continue;
    timeout = std::min(timeout, std::chrono::milliseconds(
                                    static_cast<int64_t>(1000 * std::min(seconds, kSecondsMax))));
  }
  if (node.empty()) return answer_here(request, timeout);
  Result<proto::ControlReply> theirs = peers()->ask(node, request, timeout + kAskTimeout);
  // What a lost node said last is known here.
  if (!theirs.ok() && request.has_list()) return answer_here(request, timeout);
  proto::ControlReply reply;
  if (theirs.ok()) reply = *theirs;
  reply.set_request(request.request());
  if (!theirs.ok()) reply.set_error(theirs.status().message());
  return reply;
}

Status NodeDaemon::list(const proto::ListRuns& list, proto::ControlReply& reply) {
  std::vector<proto::RunRecord> runs = own_runs();
  proto::NodeRecord& self = *reply.add_nodes();
  self.set_name(options_.name);
  self.set_reachable(true);
  self.set_drained(drained_);
  for (const proto::DeviceState& device : devices()) add_device(device, self);
  if (peers() && !list.only_here()) {
    for (const proto::RunRecord& record : runs_of_peers()) runs.push_back(record);
    for (const proto::NodeRecord& record : peers()->nodes()) *reply.add_nodes() = record;
  }
  for (const proto::RunRecord& record : runs) {
    const bool wanted = list.run().empty() || record.id() == list.run();
    if (wanted && !is_outdated(record, runs)) *reply.add_runs() = record;
  }
  if (list.run().empty() || reply.runs_size() > 0) return ok_status();
  return not_found("there is no run " + list.run());
}

proto::ControlReply NodeDaemon::answer_here(const proto::ControlRequest& request,
                                            std::chrono::milliseconds timeout) {
  proto::ControlReply reply;
  reply.set_request(request.request());
  Status status;
  switch (request.body_case()) {
    case proto::ControlRequest::kSubmit: {
      const Result<std::string> run = submit(request.submit());
      if (run.ok()) {
        reply.set_run(*run);
      } else {
        status = run.status();
      }
      break;
    }
    case proto::ControlRequest::kList: status = list(request.list(), reply); break;
    case proto::ControlRequest::kOrder: status = order(request.order(), timeout, reply); break;
    case proto::ControlRequest::kScale: status = scale(request.scale(), timeout, reply); break;
    case proto::ControlRequest::kDrain: status = drain(request.drain(), timeout, reply); break;
    case proto::ControlRequest::kLeave: {
      const Result<std::string> left =
          leave(request.leave().run(), request.leave().node(), timeout);
      if (left.ok()) reply.set_text(*left);
      status = left.status();
      break;
    }
    case proto::ControlRequest::kReserve: status = reserve_here(request.reserve()); break;
    case proto::ControlRequest::kAdopt: status = adopt(request.adopt().record()); break;
    case proto::ControlRequest::kLog: status = read_log(request.log(), reply); break;
    case proto::ControlRequest::BODY_NOT_SET: status = invalid_argument("an empty request");
  }
  if (!status.ok()) reply.set_error(status.message());
  return reply;
}

Result<std::string> NodeDaemon::submit(const proto::SubmitRun& submit) {
  PERCHERON_ASSIGN_OR_RETURN(const ClusterPlacement placement,
                             read_placement(submit.config(), options_.name));
  if (submit.config().output().directory().empty()) {
    return invalid_argument("output.directory is missing: say where the run's files shall go");
  }
  PERCHERON_RETURN_IF_ERROR(check_nodes(placement.nodes()));
  const std::set<std::string> elsewhere = names_elsewhere();
  const std::lock_guard lock(mutex_);
  if (shutting_down_) return unavailable("node " + options_.name + " is shutting down");
  if (drained_) {
    return failed_precondition("node " + options_.name + " is drained: submit to another one");
  }
  const std::string& output = submit.config().output().directory();
  std::vector<proto::RunRecord> others =
      peers() ? peers()->runs() : std::vector<proto::RunRecord>();
  for (const proto::RunRecord* own : book_.all()) others.push_back(*own);
  for (const proto::RunRecord& other : others) {
    if (run_is_over(other.report().state()) || is_outdated(other, others)) continue;
    if (other.config().output().directory() != output) continue;
    return failed_precondition(
        fmt::format("run {} writes to output.directory {} already", other.id(), output));
  }
  // Whoever had the output before has it no more.
  PERCHERON_ASSIGN_OR_RETURN(const std::optional<RunOwner> before, read_run_owner(files_, output));
  PERCHERON_ASSIGN_OR_RETURN(
      proto::RunRecord* const record,
      book_.add(submit.name().empty() ? default_name(submit.config()) : submit.name(),
                options_.name, submit.config(), elsewhere));
  const std::string id = record->id();
  if (before) {
    record->set_generation(before->generation + 1);
    PERCHERON_RETURN_IF_ERROR(book_.save(*record));
  }
  start_queued_locked();
  return id;
}

std::vector<std::string> NodeDaemon::known_nodes() {
  std::vector<std::string> known = {options_.name};
  for (const proto::NodeRecord& record :
       peers() ? peers()->nodes() : std::vector<proto::NodeRecord>()) {
    if (!record.name().empty()) known.push_back(record.name());
  }
  return known;
}

Status NodeDaemon::check_nodes(const std::vector<std::string>& nodes) {
  const std::vector<std::string> known = known_nodes();
  const std::set<std::string> drained = drained_nodes();
  for (const std::string& node : nodes) {
    if (drained.count(node) != 0) {
      return failed_precondition(fmt::format(
          "node {0} is drained and takes no workers; `percheron drain {0} --undo` ends that",
          node));
    }
    if (std::find(known.begin(), known.end(), node) != known.end()) continue;
    return not_found(fmt::format("placement names node '{}', which this cluster does not have: {}",
                                 node, fmt::join(known, ", ")));
  }
  return ok_status();
}

bool NodeDaemon::has_supervisor_locked(const std::string& run) {
  return std::any_of(children_.begin(), children_.end(), [&](const auto& entry) {
    const proto::Endpoint& endpoint = entry.second->endpoint;
    return endpoint.run() == run && endpoint.kind() == proto::Endpoint::SUPERVISOR;
  });
}

// Orders to a run without a supervisor.
Status NodeDaemon::order_idle_run_locked(proto::RunRecord& record, const proto::RunOrder& order,
                                         proto::ControlReply& reply) {
  proto::RunReport& report = *record.mutable_report();
  reply.set_step(report.step());
  switch (order.kind()) {
    case proto::RunOrder::RESUME:
      if (report.state() == proto::RunReport::DONE) {
        return failed_precondition("run " + record.id() + " is done: there is nothing to resume");
      }
      record.clear_released();
      supervisions_.erase(record.id());
      report.set_state(proto::RunReport::QUEUED);
      reply.set_text("goes on from its newest checkpoint");
      break;
    case proto::RunOrder::PAUSE:
      if (run_is_over(report.state())) {
        return failed_precondition("run " + record.id() + " is " + state_name(report.state()));
      }
      record.set_released(true);
      report.set_state(proto::RunReport::PAUSED);
      reply.set_text("is paused; it has no devices");
      break;
    case proto::RunOrder::STOP:
    case proto::RunOrder::STOP_NOW:
      if (run_is_over(report.state())) {
        reply.set_text("was " + state_name(report.state()) + " already");
        return ok_status();
      }
      record.clear_released();
      report.set_state(proto::RunReport::STOPPED);
      record.set_ended(clock_.unix_seconds());
      reply.set_text("is stopped");
      break;
    case proto::RunOrder::SNAPSHOT:
      return failed_precondition("run " + record.id() + " is " + state_name(report.state()) +
                                 ": its newest checkpoint is " +
                                 (report.latest_checkpoint().empty()
                                      ? std::string("not written yet")
                                      : report.latest_checkpoint()));
  }
  restart_at_.erase(record.id());
  changed_.notify_all();
  return book_.save(record);
}

Status NodeDaemon::order(const proto::OrderRun& order, std::chrono::milliseconds timeout,
                         proto::ControlReply& reply) {
  std::unique_lock lock(mutex_);
  proto::RunRecord* record = book_.find(order.run());
  if (!record) return not_found("there is no run " + order.run());
  reply.set_run(order.run());
  if (!has_supervisor_locked(order.run())) {
    return order_idle_run_locked(*record, order.order(), reply);
  }
  if (order.order().kind() == proto::RunOrder::RESUME &&
      (record->released() || record->has_rests())) {
    return resume_after_its_end(lock, order.run(), timeout, reply);
  }
  if (const auto over = order_after_last_step(*record, order.order(), reply)) return *over;
  proto::Frame frame;
  *frame.mutable_order() = order.order();
  if (order.order().kind() == proto::RunOrder::PAUSE && order.order().release_devices()) {
    record->set_released(true);  // How its supervisor's end is to be understood.
  }
  PERCHERON_ASSIGN_OR_RETURN(const std::optional<proto::RunOrderReply> answer,
                             ask_supervisor(lock, order.run(), std::move(frame), timeout,
                                            standing_order(order.order(), order.run())));
  if (answer) {
    reply.set_text(answer->text());
    reply.set_step(answer->step());
    return answer->has_error() ? failed_precondition(answer->error()) : ok_status();
  }
  // It ended without an answer: by itself, or by its death.
  record = book_.find(order.run());
  if (!record) return not_found("run " + order.run() + " is forgotten");
  return order_idle_run_locked(*record, order.order(), reply);
}

Status NodeDaemon::resume_after_its_end(std::unique_lock<std::mutex>& lock, const std::string& run,
                                        std::chrono::milliseconds timeout,
                                        proto::ControlReply& reply) {
  proto::RunRecord* record = book_.find(run);
  record->clear_released();
  if (!record->has_rests()) record->set_rests("was resumed before it had ended");
  reply.set_step(record->report().step());
  PERCHERON_RETURN_IF_ERROR(book_.save(*record));
  if (!changed_.wait_for(lock, timeout, [&] {
        const proto::RunRecord* now = book_.find(run);
        return !now || !now->has_rests();
      })) {
    return unavailable(fmt::format(
        "run {} has to end first, after its checkpoint, and has not within {:.0f} s; the order "
        "stands: it goes on after that",
        run, static_cast<double>(timeout.count()) * 1e-3));
  }
  record = book_.find(run);
  if (!record) return not_found("run " + run + " is forgotten");
  if (run_is_over(record->report().state())) {
    return failed_precondition("run " + run + " is " + state_name(record->report().state()));
  }
  reply.set_text("goes on from its newest checkpoint");
  return ok_status();
}

Result<std::optional<proto::RunOrderReply>> NodeDaemon::ask_supervisor(
    std::unique_lock<std::mutex>& lock, const std::string& run, proto::Frame frame,
    std::chrono::milliseconds timeout, const std::string& standing) {
  *frame.mutable_to() = endpoint_of(options_.name, proto::Endpoint::SUPERVISOR, run);
  const uint64_t number = next_order_++;
  if (frame.has_scale()) {
    frame.mutable_scale()->set_request(number);
  } else {
    frame.mutable_order()->set_request(number);
  }
  orders_[number] = {};
  lock.unlock();
  route(std::move(frame));
  lock.lock();
  const bool told = changed_.wait_for(
      lock, timeout, [&] { return orders_[number].answered || !has_supervisor_locked(run); });
  const Order answer = orders_[number];
  orders_.erase(number);
  if (answer.answered) return std::optional(answer.reply);
  if (told) return std::optional<proto::RunOrderReply>();
  return unavailable(fmt::format("run {} has not done it within {:.0f} s; the order stands: {}",
                                 run, static_cast<double>(timeout.count()) * 1e-3, standing));
}

Status NodeDaemon::read_log(const proto::ReadLog& read, proto::ControlReply& reply) {
  std::string process = read.device().empty() ? "supervisor" : read.device();
  if (const size_t slash = process.find('/'); slash != std::string::npos) {
    if (process.substr(0, slash) != options_.name) {
      return not_found(process + " is not of this node (" + options_.name +
                       "): ask the node whose it is");
    }
    process.erase(0, slash + 1);
  }
  std::string state;
  {
    const std::lock_guard lock(mutex_);
    const proto::RunRecord* const record = book_.find(read.run());
    if (!record) return not_found("there is no run " + read.run());
    const proto::RunReport& report = record->report();
    state = state_name(report.state()) + (report.message().empty() ? "" : ": " + report.message());
    process = process_with(process, options_.name, report);
  }
  const std::string who = read.device().empty() ? std::string() : " on " + read.device();
  const Result<LogPart> part =
      logs_.read(logs_.path_of(read.run(), process), read.offset(), kLogBytesMax);
  if (part.status().code() == StatusCode::kNotFound) {
    reply.set_text(
        fmt::format("run {} has not been started{} yet; it is {}", read.run(), who, state));
    return ok_status();
  }
  PERCHERON_RETURN_IF_ERROR(part.status());
  reply.set_log(part->text);
  reply.set_log_end(part->end());
  return ok_status();
}

}  // namespace percheron
