#include "actors/node/node_daemon.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <utility>

#include "actors/node/endpoint.h"
#include "base/log.h"

namespace percheron {
namespace {

constexpr auto kTick = std::chrono::milliseconds(100);
constexpr auto kLastWords = std::chrono::seconds(5);  // to read what a dead process has said
constexpr double kSayAgainSeconds = 60;
constexpr double kEndSeconds = 20;  // that a process gets to end by itself

bool overlap(const std::vector<DeviceId>& some, const std::vector<DeviceId>& others) {
  return std::find_first_of(some.begin(), some.end(), others.begin(), others.end()) != some.end();
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
    : options_(std::move(options)),
      files_(files),
      clock_(clock),
      logs_(files, join_path(options_.state_directory, "logs"), options_.logs),
      book_(std::move(book)),
      cleanup_(files, clock, logs_, options_.retention),
      silence_({.silence_seconds = options_.silence_seconds,
                .first_seconds = options_.first_sign_seconds}) {
  drained_ = files_.exists(drained_path());
  for (proto::RunRecord* record : book_.all()) {
    proto::RunReport& report = *record->mutable_report();
    if (run_is_over(report.state()) || record->released()) continue;
    report.set_state(proto::RunReport::QUEUED);
    report.set_message("the daemon was started again");
    record->clear_rests();
  }
  ticker_ = std::thread([this] { tick(); });
}

NodeDaemon::~NodeDaemon() { shut_down(kEndSeconds); }

std::string NodeDaemon::key_of(const proto::Endpoint& endpoint) {
  return endpoint.run() + "|" + proto::Endpoint::Kind_Name(endpoint.kind()) + "|" +
         endpoint.device();
}

// --- processes -----------------------------------------------------------------------------------

Status NodeDaemon::start_child_locked(const proto::Endpoint& endpoint, proto::Frame first,
                                      const std::string& verb, const std::string& log,
                                      const proto::StartWorker& worker) {
  PERCHERON_RETURN_IF_ERROR(files_.create_directories(logs_.directory_of(endpoint.run())));
  PERCHERON_ASSIGN_OR_RETURN(auto sockets, unix_socket_pair());
  const auto child = std::make_shared<Child>();
  child->endpoint = endpoint;
  child->worker = worker;
  if (worker.has_device()) {
    PERCHERON_ASSIGN_OR_RETURN(child->devices, parse_device_group(worker.device()));
  }
  child->log = log;
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
  if (endpoint.kind() == proto::Endpoint::WORKER) {
    child->puller = std::make_unique<FeaturePuller>(endpoint.device(), clock_);
  }
  child->reader = std::thread([this, child] { read_from(child); });
  // One that is ending still has the key to itself no more.
  if (auto before = children_.extract(key_of(endpoint))) {
    before.key() += "|" + std::to_string(before.mapped()->process->pid());
    children_.insert(std::move(before));
  }
  child->started = now();
  children_[key_of(endpoint)] = child;
  silence_.watch(child->process->pid(), now());
  return ok_status();
}

void NodeDaemon::read_from(const ChildPtr& child) {
  while (true) {
    Result<ReceivedFrame> received = child->link->receive();
    if (!received.ok()) {
      const std::lock_guard lock(mutex_);
      // Without its link it is of no use: only its end closes the link in order.
      const StatusCode code = received.status().code();
      if (code != StatusCode::kUnavailable && code != StatusCode::kCancelled) {
        log_error("{}: {}", child->link->peer(), received.status().message());
        child->kill_at = now();
      }
      child->heard_out = true;
      changed_.notify_all();
      return;
    }
    if (received->frame.has_alive()) {
      alive(*child);
      continue;
    }
    // A process speaks for itself alone.
    *received->frame.mutable_from() = child->endpoint;
    if (take_features(*child, received->frame, received->fd)) continue;
    route(std::move(received->frame), std::move(received->fd));
  }
}

void NodeDaemon::end_child_locked(Child& child) {
  child.unwanted = true;
  silence_.forget(child.process->pid());
  if (child.kill_at == 0) child.kill_at = now() + kEndSeconds;
  child.link->close();
}

void NodeDaemon::end_run_locked(const std::string& run, const std::string& supervisor_node) {
  claims_.release_all(run, supervisor_node);
  bool others = false;  // of a successor
  for (const auto& [key, child] : children_) {
    if (child->endpoint.run() != run || child->endpoint.kind() != proto::Endpoint::WORKER) continue;
    if (child->worker.supervisor_node() == supervisor_node) {
      end_child_locked(*child);
    } else {
      others = others || !child->unwanted;
    }
  }
  if (others) return;
  features_.release_run(run);
  led_by_.erase(run);
}

void NodeDaemon::child_ended(const ChildPtr& child, bool well, const std::string& how) {
  proto::Frame told;
  {
    std::unique_lock lock(mutex_);
    // Its last words first: they are on the link still.
    changed_.wait_for(lock, kLastWords, [&] { return child->heard_out; });
    child->link->close();
    std::erase_if(children_, [&](const auto& entry) { return entry.second == child; });
    child->ended = true;
    silence_.forget(child->process->pid());
    const std::string why = child->killed_for.empty() ? how : child->killed_for;
    gone_.push_back(child);
    const std::string& device = child->endpoint.device();
    log_info("the {} of run {} ended: {}", device.empty() ? "supervisor" : "worker of " + device,
             child->endpoint.run(), why);
    if (child->endpoint.kind() == proto::Endpoint::SUPERVISOR) {
      supervisor_ended_locked(child, well, why);
    } else if (!child->unwanted || child->tell_end) {
      *told.mutable_to() = endpoint_of(child->worker.supervisor_node(), proto::Endpoint::SUPERVISOR,
                                       child->endpoint.run());
      *told.mutable_from() = child->endpoint;
      told.mutable_ended()->set_device(child->endpoint.device());
      told.mutable_ended()->set_attempt(child->worker.attempt());
      told.mutable_ended()->set_how(why);
    }
    changed_.notify_all();
  }
  if (told.has_ended()) route(std::move(told));
}

Status NodeDaemon::spawn_worker(const proto::StartWorker& worker) {
  const std::lock_guard lock(mutex_);
  if (drained_) return failed_precondition("node " + options_.name + " is drained");
  PERCHERON_RETURN_IF_ERROR(heed_locked(worker));
  const proto::Endpoint endpoint =
      endpoint_of(options_.name, proto::Endpoint::WORKER, worker.run(), worker.device());
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<DeviceId> devices,
                             parse_device_group(worker.device()));
  const Status taken =
      claims_.take(worker.run(), worker.supervisor_node(), device_names(devices), now());
  if (!taken.ok()) return failed_precondition(options_.name + "/" + taken.message());
  for (const auto& [key, child] : children_) {
    if (child->endpoint.run() != worker.run() || child->unwanted) continue;
    if (!overlap(child->devices, devices)) continue;
    kill_locked(*child, "is replaced by another process");  // Its supervisor has given it up.
    end_child_locked(*child);
  }
  proto::Frame first;
  *first.mutable_start_worker() = worker;
  return start_child_locked(endpoint, std::move(first), "worker",
                            logs_.path_of(worker.run(), worker.device()), worker);
}

// --- frames --------------------------------------------------------------------------------------

void NodeDaemon::route(proto::Frame frame, FileDescriptor fd) {
  if (frame.to().node() != options_.name) {
    PeerLinks* const links = peers();
    const std::string node = frame.to().node();  // outlives the frame's way to the link
    const Status sent =
        links ? links->send(node, std::move(frame)) : not_found("there is no node " + node);
    if (!sent.ok()) undeliverable(frame, sent);
    return;
  }
  if (!is_heeded(frame)) return;
  if (frame.to().kind() == proto::Endpoint::DAEMON) return take(frame);
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

void NodeDaemon::take(const proto::Frame& frame) {
  const std::string& run = frame.from().run();
  switch (frame.body_case()) {
    case proto::Frame::kSpawn: {
      const Status spawned = spawn_worker(frame.spawn().worker());
      if (spawned.ok()) return;
      proto::Frame reply;
      *reply.mutable_to() = frame.from();
      *reply.mutable_from() =
          endpoint_of(options_.name, proto::Endpoint::WORKER, run, frame.spawn().worker().device());
      // As if it had ended at once: it may be tried again.
      reply.mutable_ended()->set_device(frame.spawn().worker().device());
      reply.mutable_ended()->set_attempt(frame.spawn().worker().attempt());
      reply.mutable_ended()->set_how(spawned.message());
      return route(std::move(reply));
    }
    case proto::Frame::kEndRun: {
      const std::lock_guard lock(mutex_);
      return end_run_locked(run, frame.from().node());
    }
    case proto::Frame::kRelease: features_.release(run, frame.release()); return tell_freed();
    case proto::Frame::kKillWorker: return kill_worker(run, frame.kill_worker());
    case proto::Frame::kReport: {
      const std::lock_guard lock(mutex_);
      return take_report_locked(run, frame.report());
    }
    case proto::Frame::kPlacement: {
      const std::lock_guard lock(mutex_);
      return take_placement_locked(run, frame.placement());
    }
    case proto::Frame::kEndWorker: return end_worker(frame);
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

// --- time ----------------------------------------------------------------------------------------

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
      end_silent_locked();
      end_orphans_locked();
      if (shutting_down_ && children_.empty() && gone.empty()) return;
      if (!shutting_down_) {
        queue_recovering_locked();
        forget_moved_locked();
        rename_twins_locked();
        start_queued_locked();
      }
    }
    if (!shutting_down_) take_over_orphans();
    for (const ChildPtr& child : gone) {
      // What it pulls may wait for credits that this process's own features hold.
      if (child->puller) child->puller->cancel();
      if (child->reader.joinable()) child->reader.join();
      if (child->puller) child->puller->stop();  // Else what it pulls is lent to nobody.
      features_.process_ended(child->process->pid());
      child->process.reset();  // Here and not where it may be the reaper's own thread.
    }
    tell_freed();
    look_after_files();
  }
}

void NodeDaemon::shut_down(double seconds) {
  {
    const std::lock_guard lock(mutex_);
    if (!shutting_down_) {
      shutting_down_ = true;
      for (const auto& [key, child] : children_) {
        const bool supervisor = child->endpoint.kind() == proto::Endpoint::SUPERVISOR;
        if (!supervisor && !child->unwanted && child->worker.supervisor_node() != options_.name) {
          // Another node's run goes on without it: there is nothing to wait for.
          child->tell_end = true;
          end_child_locked(*child);
          continue;
        }
        child->kill_at = now() + seconds;
        if (!supervisor) continue;
        proto::Frame frame;  // Nobody waits for the answer.
        *frame.mutable_to() = child->endpoint;
        frame.mutable_order()->set_kind(proto::RunOrder::PAUSE);
        frame.mutable_order()->set_release_devices(true);
        child->link->send(std::move(frame));
      }
    }
    changed_.notify_all();
  }
  if (ticker_.joinable()) ticker_.join();
}

}  // namespace percheron
