#include "actors/node/node_daemon.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <utility>

#include "actors/service/placement.h"
#include "base/log.h"

namespace percheron {
namespace {

constexpr auto kTick = std::chrono::milliseconds(100);
constexpr auto kLastWords = std::chrono::seconds(5);  // to read what a dead process has said
constexpr double kSayAgainSeconds = 60;
constexpr double kEndSeconds = 20;  // that a process gets to end by itself

proto::Endpoint endpoint_of(const std::string& node, proto::Endpoint::Kind kind,
                            const std::string& run, const std::string& device = "") {
  proto::Endpoint endpoint;
  endpoint.set_node(node);
  endpoint.set_kind(kind);
  if (!run.empty()) endpoint.set_run(run);
  if (!device.empty()) endpoint.set_device(device);
  return endpoint;
}

}  // namespace

Result<std::unique_ptr<NodeDaemon>> NodeDaemon::start(NodeOptions options, FileSystem& files,
                                                      const Clock& clock) {
  PERCHERON_ASSIGN_OR_RETURN(
      RunBook book, RunBook::open(files, clock, join_path(options.state_directory, "runs")));
  return std::unique_ptr<NodeDaemon>(
      new NodeDaemon(std::move(options), files, clock, std::move(book)));
}

NodeDaemon::NodeDaemon(NodeOptions options, FileSystem& files, const Clock& clock, RunBook book)
    : options_(std::move(options)), files_(files), clock_(clock), book_(std::move(book)) {
  for (proto::RunRecord* record : book_.all()) {
    proto::RunReport& report = *record->mutable_report();
    if (run_is_over(report.state()) || record->released()) continue;
    report.set_state(proto::RunReport::QUEUED);
    report.set_message("the daemon was started again");
  }
  ticker_ = std::thread([this] { tick(); });
}

NodeDaemon::~NodeDaemon() { shut_down(kEndSeconds); }

std::string NodeDaemon::key_of(const proto::Endpoint& endpoint) {
  return endpoint.run() + "|" + proto::Endpoint::Kind_Name(endpoint.kind()) + "|" +
         endpoint.device();
}

std::string NodeDaemon::log_path(const std::string& run, const std::string& process) const {
  std::string name = process;
  std::replace(name.begin(), name.end(), ':', '-');
  return join_path(join_path(join_path(options_.state_directory, "logs"), run), name + ".log");
}

// --- processes -----------------------------------------------------------------------------------

Status NodeDaemon::start_child_locked(const proto::Endpoint& endpoint, proto::Frame first,
                                      const std::string& verb, const std::string& log,
                                      const proto::StartWorker& worker) {
  PERCHERON_RETURN_IF_ERROR(files_.create_directories(
      join_path(join_path(options_.state_directory, "logs"), endpoint.run())));
  PERCHERON_ASSIGN_OR_RETURN(auto sockets, unix_socket_pair());
  const auto child = std::make_shared<Child>();
  child->endpoint = endpoint;
  child->worker = worker;
  PERCHERON_ASSIGN_OR_RETURN(
      std::unique_ptr<FrameChannel> channel,
      unix_channel(std::move(sockets.first), verb + " of run " + endpoint.run()));
  child->link = std::make_unique<FrameLink>(std::move(channel), clock_);
  LinkedProcess::Command command{
      options_.program,
      {"percheron", verb,
       endpoint.run() + (endpoint.device().empty() ? "" : "/" + endpoint.device())},
      log};
  PERCHERON_ASSIGN_OR_RETURN(
      child->process,
      LinkedProcess::start(command, std::move(sockets.second),
                           [this, weak = std::weak_ptr(child)](bool well, const std::string& how) {
                             if (const ChildPtr ended = weak.lock()) child_ended(ended, well, how);
                           }));
  child->link->send(std::move(first));
  child->reader = std::thread([this, child] { read_from(child); });
  children_[key_of(endpoint)] = child;
  return ok_status();
}

void NodeDaemon::read_from(const ChildPtr& child) {
  while (true) {
    Result<ReceivedFrame> received = child->link->receive();
    if (!received.ok()) {
      const std::lock_guard lock(mutex_);
      if (received.status().code() == StatusCode::kDataLoss) {
        log_error("{}: {}", child->link->peer(), received.status().message());
        child->kill_at = now();
      }
      child->heard_out = true;
      changed_.notify_all();
      return;
    }
    // A process speaks for itself alone.
    *received->frame.mutable_from() = child->endpoint;
    route(std::move(received->frame), std::move(received->fd));
  }
}

void NodeDaemon::end_child_locked(Child& child) {
  child.unwanted = true;
  if (child.kill_at == 0) child.kill_at = now() + kEndSeconds;
  child.link->close();
}

void NodeDaemon::end_run_locked(const std::string& run) {
  for (const auto& [key, child] : children_) {
    if (child->endpoint.run() == run && child->endpoint.kind() == proto::Endpoint::WORKER) {
      end_child_locked(*child);
    }
  }
  features_.release_run(run);
}

void NodeDaemon::child_ended(const ChildPtr& child, bool well, const std::string& how) {
  proto::Frame told;
  {
    std::unique_lock lock(mutex_);
    // Its last words first: they are on the link still.
    changed_.wait_for(lock, kLastWords, [&] { return child->heard_out; });
    child->link->close();
    const auto known = children_.find(key_of(child->endpoint));
    if (known != children_.end() && known->second == child) children_.erase(known);
    child->ended = true;
    gone_.push_back(child);
    log_info("{} {} of run {} ended: {}", proto::Endpoint::Kind_Name(child->endpoint.kind()),
             child->endpoint.device(), child->endpoint.run(), how);
    if (child->endpoint.kind() == proto::Endpoint::SUPERVISOR) {
      supervisor_ended_locked(child, well, how);
    } else if (!child->unwanted) {
      *told.mutable_to() = endpoint_of(child->worker.supervisor_node(), proto::Endpoint::SUPERVISOR,
                                       child->endpoint.run());
      *told.mutable_from() = child->endpoint;
      told.mutable_ended()->set_device(child->endpoint.device());
      told.mutable_ended()->set_attempt(child->worker.attempt());
      told.mutable_ended()->set_how(how);
    }
    changed_.notify_all();
  }
  if (told.has_ended()) route(std::move(told));
}

void NodeDaemon::supervisor_ended_locked(const ChildPtr& child, bool well, const std::string& how) {
  const std::string& run = child->endpoint.run();
  proto::RunRecord* record = book_.find(run);
  if (!record) return;
  proto::RunReport& report = *record->mutable_report();
  end_run_locked(run);
  if (peers()) {
    for (const std::string& device : devices_locked(*record)) {
      const std::string node = device.substr(0, device.find('/'));
      if (node == options_.name) continue;
      proto::Frame frame;
      *frame.mutable_to() = endpoint_of(node, proto::Endpoint::DAEMON, "");
      *frame.mutable_from() = child->endpoint;
      frame.mutable_end_run();
      const Status sent = peers()->send(node, std::move(frame));
      if (!sent.ok())
        log_warning("{} is not told that run {} ended: {}", node, run, sent.message());
    }
  }
  if (run_is_over(report.state()) || record->released()) {
    record->set_ended(clock_.unix_seconds());
  } else if (shutting_down_) {
    report.set_state(proto::RunReport::QUEUED);
    report.set_message("the daemon ended");
  } else {
    // It died, or ended because a worker did: it goes on from its newest checkpoint.
    std::vector<double>& times = restarts_[run];
    const double since = now() - options_.restart_window_seconds;
    times.erase(std::remove_if(times.begin(), times.end(), [&](double t) { return t < since; }),
                times.end());
    if (static_cast<int>(times.size()) >= options_.restarts_max) {
      report.set_state(proto::RunReport::FAILED);
      report.set_message(
          fmt::format("its supervisor ended {} times within {:.0f} s, the last time "
                      "by {}; `percheron resume {}` tries again",
                      times.size() + 1, options_.restart_window_seconds, how, run));
      record->set_ended(clock_.unix_seconds());
    } else {
      const double wait = std::min(30.0, 0.5 * static_cast<double>(1 << times.size()));
      times.push_back(now());
      restart_at_[run] = now() + wait;
      record->set_supervisor_restarts(record->supervisor_restarts() + 1);
      report.set_state(proto::RunReport::RECOVERING);
      if (report.message().empty() || !well) report.set_message("its supervisor ended: " + how);
    }
  }
  const Status saved = book_.save(*record);
  if (!saved.ok()) log_error("the record of run {} is not saved: {}", run, saved.message());
}

Status NodeDaemon::start_supervisor_locked(proto::RunRecord& record) {
  proto::Frame first;
  proto::StartSupervisor& start = *first.mutable_start_supervisor();
  start.set_run(record.id());
  start.set_node(options_.name);
  *start.mutable_config() = record.config();
  PERCHERON_RETURN_IF_ERROR(
      start_child_locked(endpoint_of(options_.name, proto::Endpoint::SUPERVISOR, record.id()),
                         std::move(first), "supervisor", log_path(record.id(), "supervisor"), {}));
  record.mutable_report()->set_state(proto::RunReport::STARTING);
  record.clear_released();
  record.clear_ended();
  return book_.save(record);
}

Status NodeDaemon::spawn_worker(const proto::StartWorker& worker) {
  const std::lock_guard lock(mutex_);
  const proto::Endpoint endpoint =
      endpoint_of(options_.name, proto::Endpoint::WORKER, worker.run(), worker.device());
  for (const auto& [key, child] : children_) {
    if (child->endpoint.device() != worker.device() || child->unwanted) continue;
    return failed_precondition(fmt::format("{}/{} belongs to run {}", options_.name,
                                           worker.device(), child->endpoint.run()));
  }
  proto::Frame first;
  *first.mutable_start_worker() = worker;
  return start_child_locked(endpoint, std::move(first), "worker",
                            log_path(worker.run(), worker.device()), worker);
}

// --- frames --------------------------------------------------------------------------------------

void NodeDaemon::route(proto::Frame frame, FileDescriptor fd) {
  if (frame.to().node() != options_.name) {
    PeerLinks* const links = peers();
    const Status sent = links ? links->send(frame.to().node(), frame)
                              : not_found("there is no node " + frame.to().node());
    if (!sent.ok()) undeliverable(frame, sent);
    return;
  }
  if (frame.to().kind() == proto::Endpoint::DAEMON) return take(frame, std::move(fd));
  const std::lock_guard lock(mutex_);
  const auto child = children_.find(key_of(frame.to()));
  if (child == children_.end()) return;  // It has ended; whoever must know is told of that.
  child->second->link->send(std::move(frame), std::move(fd));
}

// What was to start a worker is answered, so that it is tried again; the loss of a node is told by
// node_lost() to whoever waits for anything else.
void NodeDaemon::undeliverable(const proto::Frame& frame, const Status& why) {
  if (!frame.has_spawn()) {
    const std::lock_guard lock(mutex_);
    double& said = undeliverable_said_[frame.to().node()];
    if (said > 0 && now() - said < kSayAgainSeconds) return;
    said = now();
    return log_warning("frames for {} are dropped: {}", frame.to().node(), why.message());
  }
  proto::Frame reply;
  *reply.mutable_to() = frame.from();
  *reply.mutable_from() = endpoint_of(frame.to().node(), proto::Endpoint::DAEMON, "");
  proto::WorkerEnded& ended = *reply.mutable_ended();
  ended.set_device(frame.spawn().worker().device());
  ended.set_attempt(frame.spawn().worker().attempt());
  ended.set_how(why.message());
  ended.set_unreachable(true);
  route(std::move(reply));
}

void NodeDaemon::take(const proto::Frame& frame, FileDescriptor fd) {
  const std::string& run = frame.from().run();
  switch (frame.body_case()) {
    case proto::Frame::kSpawn: {
      const Status spawned = spawn_worker(frame.spawn().worker());
      if (spawned.ok()) return;
      proto::Frame reply;
      *reply.mutable_to() = frame.from();
      *reply.mutable_from() =
          endpoint_of(options_.name, proto::Endpoint::WORKER, run, frame.spawn().worker().device());
      reply.mutable_loaded()->set_error(spawned.message());
      return route(std::move(reply));
    }
    case proto::Frame::kEndRun: {
      const std::lock_guard lock(mutex_);
      return end_run_locked(run);
    }
    case proto::Frame::kPublish: {
      const Status kept = features_.keep(run, frame.publish().key(), std::move(fd));
      if (!kept.ok()) log_error("features of run {}: {}", run, kept.message());
      return;
    }
    case proto::Frame::kFetch: return fetch(frame);
    case proto::Frame::kRelease: return features_.release(run, frame.release());
    case proto::Frame::kReport: {
      const std::lock_guard lock(mutex_);
      return take_report_locked(run, frame.report());
    }
    case proto::Frame::kOrderReply: {
      const std::lock_guard lock(mutex_);
      const auto order = orders_.find(frame.order_reply().request());
      if (order == orders_.end()) return;  // Nobody waits any more.
      order->second = {true, frame.order_reply()};
      changed_.notify_all();
      return;
    }
    default:
      log_warning("a frame of kind {} is not for a daemon", static_cast<int>(frame.body_case()));
  }
}

void NodeDaemon::fetch(const proto::Frame& frame) {
  proto::Frame reply;
  *reply.mutable_to() = frame.from();
  *reply.mutable_from() = endpoint_of(options_.name, proto::Endpoint::DAEMON, "");
  reply.mutable_fetched()->set_request(frame.fetch().request());
  const proto::FeatureKey& key = frame.fetch().key();
  Result<FileDescriptor> fd = not_found("there is no node " + key.node());
  if (key.node() == options_.name) {
    fd = features_.find(frame.from().run(), key);
  } else if (peers()) {
    fd = peers()->pull(frame.from().run(), key);
  }
  if (!fd.ok()) {
    reply.mutable_fetched()->set_error(fd.status().message());
    return route(std::move(reply));
  }
  route(std::move(reply), std::move(fd).value());
}

void NodeDaemon::take_report_locked(const std::string& run, const proto::RunReport& report) {
  proto::RunRecord* record = book_.find(run);
  if (!record) return;
  const bool changed = record->report().state() != report.state();
  *record->mutable_report() = report;
  changed_.notify_all();
  if (!changed) return;
  log_info("run {} is {}{}{}", run, state_name(report.state()),
           report.message().empty() ? "" : ": ", report.message());
  const Status saved = book_.save(*record);
  if (!saved.ok()) log_error("the record of run {} is not saved: {}", run, saved.message());
}

void NodeDaemon::node_lost(const std::string& node) {
  std::vector<proto::Frame> frames;
  {
    const std::lock_guard lock(mutex_);
    for (proto::RunRecord* record : book_.all()) {
      for (const std::string& device : devices_locked(*record)) {
        if (device.substr(0, device.find('/')) != node) continue;
        proto::Frame frame;
        *frame.mutable_to() = endpoint_of(options_.name, proto::Endpoint::SUPERVISOR, record->id());
        *frame.mutable_from() = endpoint_of(node, proto::Endpoint::DAEMON, record->id());
        frame.mutable_ended()->set_device(device.substr(device.find('/') + 1));
        frame.mutable_ended()->set_how("node " + node + " can't be reached");
        frame.mutable_ended()->set_unreachable(true);
        frames.push_back(std::move(frame));
      }
    }
    // The supervisor of these is on the lost node: it starts new ones when it is back.
    for (const auto& [key, child] : children_) {
      if (child->endpoint.kind() == proto::Endpoint::WORKER &&
          child->worker.supervisor_node() == node) {
        end_child_locked(*child);
      }
    }
  }
  for (proto::Frame& frame : frames) route(std::move(frame));
}

// --- time ----------------------------------------------------------------------------------------

std::set<std::string> NodeDaemon::devices_locked(const proto::RunRecord& record) {
  std::set<std::string> devices;
  const Result<ClusterPlacement> placement = read_placement(record.config(), record.node());
  if (!placement.ok()) return devices;
  for (const auto& [placed, roles] : placement->workers()) devices.insert(placed.text());
  return devices;
}

std::map<std::string, std::string> NodeDaemon::device_owners() {
  const std::lock_guard lock(mutex_);
  std::map<std::string, std::string> owners;
  for (const auto& [key, child] : children_) {
    if (child->endpoint.kind() == proto::Endpoint::WORKER) {
      owners[child->endpoint.device()] = child->endpoint.run();
    }
  }
  return owners;
}

// Runs wait until the devices that they name are free, the oldest first.
void NodeDaemon::start_queued_locked() {
  std::map<std::string, std::string> taken;
  for (proto::RunRecord* record : book_.all()) {
    const proto::RunReport::State state = record->report().state();
    if (run_is_over(state) || record->released() || state == proto::RunReport::QUEUED) continue;
    for (const std::string& device : devices_locked(*record)) taken[device] = record->id();
  }
  for (const auto& [key, child] : children_) {
    if (child->endpoint.kind() != proto::Endpoint::WORKER) continue;
    taken.emplace(options_.name + "/" + child->endpoint.device(), child->endpoint.run());
  }
  for (proto::RunRecord* record : book_.all()) {
    if (record->report().state() != proto::RunReport::QUEUED) continue;
    const std::set<std::string> devices = devices_locked(*record);
    const auto busy = std::find_if(devices.begin(), devices.end(),
                                   [&](const auto& device) { return taken.count(device) != 0; });
    if (busy != devices.end()) {
      record->mutable_report()->set_message(
          fmt::format("waits for {}, which run {} has", *busy, taken[*busy]));
      for (const std::string& device : devices) taken.emplace(device, record->id());
      continue;
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

void NodeDaemon::tick() {
  while (true) {
    std::vector<ChildPtr> gone;
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kTick, [this] { return shutting_down_ && children_.empty(); });
      gone.swap(gone_);
      for (const auto& [key, child] : children_) {
        if (child->kill_at > 0 && now() > child->kill_at) child->process->signal(SIGKILL);
      }
      if (shutting_down_ && children_.empty() && gone.empty()) return;
      if (!shutting_down_) {
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
        start_queued_locked();
      }
    }
    for (const ChildPtr& child : gone) {
      if (child->reader.joinable()) child->reader.join();
      child->process.reset();  // Here and not where it may be the reaper's own thread.
    }
  }
}

void NodeDaemon::shut_down(double seconds) {
  {
    const std::lock_guard lock(mutex_);
    if (!shutting_down_) {
      shutting_down_ = true;
      for (const auto& [key, child] : children_) {
        child->kill_at = now() + seconds;
        if (child->endpoint.kind() == proto::Endpoint::SUPERVISOR) child->process->signal(SIGTERM);
      }
    }
    changed_.notify_all();
  }
  if (ticker_.joinable()) ticker_.join();
}

}  // namespace percheron
