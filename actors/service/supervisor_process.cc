#include "actors/service/supervisor_process.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "actors/run_assembly.h"
#include "actors/run_fingerprint.h"
#include "actors/service/balancer.h"
#include "actors/service/node_credits.h"
#include "actors/service/order_book.h"
#include "actors/service/remote_actors.h"
#include "actors/service/run_owner.h"
#include "actors/service/scaler.h"
#include "actors/service/worker_counts.h"
#include "actors/service/worker_set.h"
#include "base/log.h"
#include "data/transport/random_bytes.h"
#include "model/target_shard.h"

namespace percheron {
namespace {

class ServiceObserver final : public AnsweringObserver {
 public:
  ServiceObserver(RunObserver& next, OrderBook& orders, Scaler& scaler, WorkerSet& workers)
      : AnsweringObserver(next, orders), scaler_(scaler), workers_(workers) {}
  void on_step(const StepReport& report) override {
    AnsweringObserver::on_step(report);
    workers_.step_committed(report.step);
  }
  void on_workers(const WorkersReport& report) override {
    AnsweringObserver::on_workers(report);
    scaler_.on_workers(report);
  }

 private:
  Scaler& scaler_;
  WorkerSet& workers_;
};

class ServiceRunImpl final : public ServiceRun, public RemoteWorkers {
 public:
  ServiceRunImpl(FrameLink& daemon, const proto::StartSupervisor& order, const Clock& clock,
                 ClusterPlacement placement, std::shared_ptr<const RunSetup> setup)
      : daemon_(daemon),
        order_(order),
        placement_(std::move(placement)),
        setup_(std::move(setup)),
        orders_(control_, [this](const proto::RunOrderReply& reply) { answer(reply); }),
        workers_(
            placement_, start_of_workers(),
            {[this](const PlacedDevices& to, proto::Frame frame) { send(to, std::move(frame)); },
             [this](const std::string& node, proto::Frame frame) {
               send_to_daemon(node, std::move(frame));
             }},
            control_, clock),
        scaler_(placement_, order.config(), order.node(), workers_, control_,
                {[this](const proto::RunOrderReply& reply) { answer(reply); },
                 [this](const proto::RunPlacement& placement) {
                   proto::Frame frame;
                   *frame.mutable_placement() = placement;
                   send_to_daemon(order_.node(), std::move(frame));
                 },
                 [this](WorkerKind kind, int number, const PlacedDevices& placed) {
                   start_remote(kind, number, placed);
                 }}),
        reader_([this] { read(); }),
        owner_watch_([this] { watch_owner(); }) {}
  ~ServiceRunImpl() override {
    {
      const std::lock_guard lock(owner_mutex_);
      ended_ = true;
      owner_changed_.notify_all();
    }
    owner_watch_.join();
    workers_.stop();
    scaler_.stop();
    daemon_.close();
    reader_.join();
  }

  const std::shared_ptr<const RunSetup>& setup() const override { return setup_; }
  bool measures_here() const override {
    const PlacedDevices& first = placement_.targets.front();
    const std::vector<PlacedDevices> now = scaler_.placement().targets;
    return first.node == order_.node() && std::ranges::find(now, first) != now.end();
  }
  OrderBook& orders() override { return orders_; }
  std::vector<proto::WorkerState> workers() override { return workers_.states(); }
  Result<std::unique_ptr<RunParts>> start_workers(const RunEnvironment& environment) override;
  Result<RunSummary> run(RunParts& parts, const RunEnvironment& environment) override;
  void end_workers() override;

  void start(caf::actor_system& system, const std::shared_ptr<Peers>& peers) override;
  void end_worker(WorkerKind kind, int number, const std::string& why) override;
  FeatureSources sources() override { return counts_.sums(); }
  void stop() override;

 private:
  proto::StartWorker start_of_workers() const;
  void read();
  void take(const proto::Frame& frame);
  void deliver_to_actors(const proto::ActorMessage& message);
  void send(const PlacedDevices& to, proto::Frame frame);
  void send_to_daemon(const std::string& node, proto::Frame frame);
  proto::Endpoint self() const;
  void release(const PlannedStep& step);
  void answer(const proto::RunOrderReply& reply);
  Status own_output(FileSystem& files);
  void watch_owner();
  void fail(const std::string& who, const Status& status);
  void start_remote(WorkerKind kind, int number, const PlacedDevices& placed);

  FrameLink& daemon_;
  const proto::StartSupervisor order_;
  const ClusterPlacement placement_;  // at the start; later ones are the scaler's
  const std::shared_ptr<const RunSetup> setup_;
  std::string rendezvous_;  // directory in which trainers find each other
  RunControl control_;
  OrderBook orders_;
  WorkerSet workers_;
  WorkerCountSums counts_;
  Scaler scaler_;

  std::mutex peers_mutex_;
  std::shared_ptr<Peers> peers_;         // null unless actors run
  caf::actor_system* system_ = nullptr;  // likewise
  std::mutex owner_mutex_;
  std::condition_variable owner_changed_;
  bool owns_ = false, ended_ = false;  // the run, from start_workers() on
  std::thread reader_;                 // last, as the next: they use the others
  std::thread owner_watch_;
};

proto::StartWorker ServiceRunImpl::start_of_workers() const {
  proto::StartWorker start;
  start.set_run(order_.run());
  start.set_supervisor_node(order_.node());
  start.set_generation(order_.generation());
  *start.mutable_config() = setup_->config;
  return start;
}

proto::Endpoint ServiceRunImpl::self() const {
  proto::Endpoint self;
  self.set_node(order_.node());
  self.set_kind(proto::Endpoint::SUPERVISOR);
  self.set_run(order_.run());
  return self;
}

void ServiceRunImpl::answer(const proto::RunOrderReply& reply) {
  proto::Frame frame;
  *frame.mutable_order_reply() = reply;
  send_to_daemon(order_.node(), std::move(frame));
}

void ServiceRunImpl::send(const PlacedDevices& to, proto::Frame frame) {
  proto::Endpoint& endpoint = *frame.mutable_to();
  endpoint.set_node(to.node);
  endpoint.set_kind(proto::Endpoint::WORKER);
  endpoint.set_run(order_.run());
  endpoint.set_device(to.device_text());
  *frame.mutable_from() = self();
  daemon_.send(std::move(frame));
}

void ServiceRunImpl::send_to_daemon(const std::string& node, proto::Frame frame) {
  frame.mutable_to()->set_node(node);
  frame.mutable_to()->set_kind(proto::Endpoint::DAEMON);
  *frame.mutable_from() = self();
  daemon_.send(std::move(frame));
}

void ServiceRunImpl::read() {
  while (true) {
    const Result<ReceivedFrame> received = daemon_.receive();
    if (received.ok()) {
      take(received->frame);
      continue;
    }
    workers_.link_lost(received.status().message());
    return fail("the daemon of this node", unavailable(received.status().message()));
  }
}

void ServiceRunImpl::fail(const std::string& who, const Status& status) {
  const std::lock_guard lock(peers_mutex_);
  if (!peers_) return;
  caf::anon_send(peers_->supervisor, Failed{who, Outcome::of(status), WorkerKind::kTarget, -1});
}

// A node that could not be reached for long may find that another one has the run.
void ServiceRunImpl::watch_owner() {
  constexpr auto kInterval = std::chrono::seconds(1);
  std::unique_lock lock(owner_mutex_);
  while (!ended_) {
    owner_changed_.wait_for(lock, kInterval, [this] { return ended_; });
    if (ended_ || !owns_) continue;
    const Status owner =
        check_run_owner(system_files(), setup_->output(), {order_.generation(), order_.node()});
    if (owner.code() != StatusCode::kFailedPrecondition) continue;
    workers_.link_lost(owner.message());
    fail("the owner of the output", owner);
  }
}

void ServiceRunImpl::take(const proto::Frame& frame) {
  if (frame.has_actor()) return deliver_to_actors(frame.actor());
  if (frame.has_order()) return orders_.take(frame.order());
  if (frame.has_scale()) return scaler_.take(frame.scale());
  const std::string& name = frame.has_ended() ? frame.ended().device() : frame.from().device();
  if (frame.has_ended() && name.empty()) {  // a whole node
    workers_.node_lost(frame.from().node(), frame.ended());
    const int node = scaler_.node_number(frame.from().node());
    if (node >= 0) control_.node_lost(node);
    return;
  }
  const Result<std::vector<DeviceId>> devices = parse_device_group(name);
  if (!devices.ok()) return log_warning("a frame from an unknown device '{}'", name);
  const PlacedDevices of{frame.from().node(), *devices};
  switch (frame.body_case()) {
    case proto::Frame::kEnded: return workers_.take(of, frame.ended());
    case proto::Frame::kLoaded: return workers_.take(of, frame.loaded());
    case proto::Frame::kPrepared: return workers_.take(of, frame.prepared());
    case proto::Frame::kCounts: return counts_.take(of, frame.counts());
    default:
      log_warning("a frame of kind {} is not for a supervisor",
                  static_cast<int>(frame.body_case()));
  }
}

void ServiceRunImpl::deliver_to_actors(const proto::ActorMessage& message) {
  const std::lock_guard lock(peers_mutex_);
  if (!peers_) return;  // The run has ended.
  const Status delivered = deliver(message, *peers_);
  if (!delivered.ok()) log_warning("dropped: {}", delivered.message());
}

void ServiceRunImpl::release(const PlannedStep& step) {
  for (const std::string& node : scaler_.nodes()) {
    proto::Frame frame;
    frame.mutable_release()->set_epoch(step.epoch);
    frame.mutable_release()->set_first(step.first);
    frame.mutable_release()->set_count(step.count);
    send_to_daemon(node, std::move(frame));
  }
}

void ServiceRunImpl::end_workers() {
  workers_.stop();
  for (const std::string& node : scaler_.nodes()) {
    proto::Frame frame;
    frame.mutable_end_run();
    send_to_daemon(node, std::move(frame));
  }
}

// The supervisor of a lost node may hold the lock for as long as its machine's leases last, though
// it has the run no more: the lock is made anew, once.
Status ServiceRunImpl::own_output(FileSystem& files) {
  PERCHERON_ASSIGN_OR_RETURN(
      const bool first, own_run(files, setup_->output(), {order_.generation(), order_.node()}));
  if (!first || !order_.taken_over()) return ok_status();
  return files.remove_all(join_path(setup_->output(), ".lock"));
}

Result<std::unique_ptr<RunParts>> ServiceRunImpl::start_workers(const RunEnvironment& environment) {
  auto parts = std::make_unique<RunParts>(setup_);
  parts->files = &environment.files;
  parts->clock = &environment.clock;
  parts->activity = environment.activity ? environment.activity
                                         : std::make_shared<RunActivity>(environment.clock);
  parts->batches = std::make_shared<BatchSource>(setup_, environment.clock);
  // Before the lock: whoever holds it sees that it has the run no more.
  PERCHERON_RETURN_IF_ERROR(own_output(environment.files));
  PERCHERON_RETURN_IF_ERROR(lock_output(*parts));
  {
    const std::lock_guard lock(owner_mutex_);
    owns_ = true;
  }
  tell_about_setup(*setup_, *parts, environment.observer);
  PERCHERON_RETURN_IF_ERROR(workers_.load(*setup_, environment.observer));
  const std::string target_hash = workers_.target_hash();
  Fingerprint fingerprint = run_fingerprint(*setup_, target_hash);
  fingerprint.set("data.train", setup_->data.train->content_hash());
  parts->fingerprint = fingerprint.digest();
  parts->checkpoint = {setup_, resume_fingerprint(*setup_, target_hash), parts->batches};
  const uint64_t bytes_max = setup_->config.features().bytes_max();
  PERCHERON_ASSIGN_OR_RETURN(parts->store, FeatureStore::make({bytes_max, setup_->step_bytes_max}));
  auto credits = std::make_unique<NodeCredits>(bytes_max);
  parts->granted = credits->granted();
  parts->credits = std::move(credits);
  parts->exchange =
      std::make_unique<ReleasedFeatures>([this](const PlannedStep& step) { release(step); });
  parts->quarantine = std::make_unique<Quarantine>(static_cast<int64_t>(
      setup_->data.selection.samples.size() + setup_->data.held_out_selection.samples.size()));
  PERCHERON_ASSIGN_OR_RETURN(const std::optional<ResumePoint> point,
                             find_resume_point(*parts, environment));
  if (point) {
    parts->resumed_from = point->path;
    parts->progress = point->progress;
  }
  proto::PrepareWorker prepare;
  prepare.set_fingerprint(parts->fingerprint);
  prepare.set_generation(order_.generation());
  prepare.set_checkpoint(parts->resumed_from);
  // Output is storage that all nodes of a run share. Nobody writes to an older start's directory.
  rendezvous_ = join_path(setup_->output(), ".rendezvous");
  PERCHERON_RETURN_IF_ERROR(environment.files.remove_all(rendezvous_));
  prepare.set_rendezvous(join_path(rendezvous_, make_uuid(system_random_bytes())));
  prepare.set_collective_interface(setup_->config.cluster().collective_interface());
  PERCHERON_RETURN_IF_ERROR(workers_.prepare(prepare, environment.observer));
  const proto::WeightsCompared weights = workers_.weights_compared();
  parts->weights_note = weights.text();
  if (weights.has_tokens()) {
    parts->weights_comparison = {weights.tokens(), weights.same_top1(), weights.state_difference()};
  }
  parts->targets.resize(placement_.targets.size());
  parts->trainers.resize(placement_.trainers.size());
  for (size_t i = 0; i < placement_.targets.size(); ++i) {
    parts->targets[i].node = scaler_.node_number(placement_.targets[i].node);
  }
  for (size_t i = 0; i < placement_.trainers.size(); ++i) {
    parts->trainers[i].node = scaler_.node_number(placement_.trainers[i].node);
  }
  return parts;
}

Result<RunSummary> ServiceRunImpl::run(RunParts& parts, const RunEnvironment& environment) {
  ServiceObserver observer(environment.observer, orders_, scaler_, workers_);
  Balancer balancer(order_.run(), order_.config(), parts.activity,
                    {[this] { return scaler_.placement(); },
                     [this](const proto::ScaleRun& order) { scaler_.take(order); },
                     [](const std::string& sentence) { log_info("{}", sentence); }},
                    environment.clock);
  balancer.begin();
  Result<RunSummary> summary = run_actors(parts,
                                          RunEnvironment{.files = environment.files,
                                                         .clock = environment.clock,
                                                         .observer = observer,
                                                         .stop_signals = environment.stop_signals,
                                                         .control = &control_,
                                                         .activity = environment.activity},
                                          this);
  const Status removed = environment.files.remove_all(rendezvous_);
  if (!removed.ok()) log_warning("{} stays: {}", rendezvous_, removed.message());
  return summary;
}

void ServiceRunImpl::start(caf::actor_system& system, const std::shared_ptr<Peers>& peers) {
  {
    const std::lock_guard lock(peers_mutex_);
    system_ = &system;
    peers_ = peers;
  }
  for (const auto& [placed, roles] : placement_.workers()) {
    for (int number : roles.targets) start_remote(WorkerKind::kTarget, number, placed);
    for (const auto& [number, device] : roles.trainers) {
      start_remote(WorkerKind::kTrainer, number, placed);
    }
  }
  scaler_.begin();
}

void ServiceRunImpl::start_remote(WorkerKind kind, int number, const PlacedDevices& placed) {
  const bool target = kind == WorkerKind::kTarget;
  const auto send_there = [this, placed](proto::ActorMessage message) {
    proto::Frame frame;
    *frame.mutable_actor() = std::move(message);
    send(placed, std::move(frame));
  };
  const std::lock_guard lock(peers_mutex_);
  if (!peers_) return;
  (target ? peers_->targets : peers_->trainers)
      .set(number,
           start_remote_actor(*system_,
                              target ? proto::ActorMessage::TARGET : proto::ActorMessage::TRAINER,
                              number, send_there));
}

void ServiceRunImpl::end_worker(WorkerKind kind, int number, const std::string& why) {
  const std::optional<PlacedDevices> placed = scaler_.place_of(kind, number);
  if (!placed) return;  // It was taken out meanwhile.
  const std::optional<int> attempt = workers_.attempt_of(*placed);
  if (!attempt) return;
  proto::Frame frame;
  proto::KillWorker& order = *frame.mutable_kill_worker();
  order.set_device(placed->device_text());
  order.set_attempt(*attempt);
  order.set_why(why);
  send_to_daemon(placed->node, std::move(frame));
}

void ServiceRunImpl::stop() {
  workers_.stop();
  scaler_.stop();
  const std::lock_guard lock(peers_mutex_);
  peers_.reset();
  system_ = nullptr;
}

}  // namespace

namespace {

// As train() has it, which knows no nodes: what counts targets and speaks of them goes by groups.
Result<std::shared_ptr<const RunSetup>> resolve_in_groups(const proto::Run& run,
                                                          const ClusterPlacement& placement,
                                                          FileSystem& files) {
  PERCHERON_ASSIGN_OR_RETURN(const std::shared_ptr<const RunSetup> plain,
                             resolve_run(without_nodes(run, placement), files));
  const int64_t size = run.placement().tensor_parallel();
  if (size == 1) return plain;
  PERCHERON_RETURN_IF_ERROR(check_tensor_parallel(plain->target, size));
  const auto setup = std::make_shared<RunSetup>(*plain);
  setup->config.mutable_placement()->set_tensor_parallel(size);
  setup->placement.tensor_parallel = static_cast<int>(size);
  setup->placement.targets.clear();
  for (const PlacedDevices& placed : placement.targets) {
    setup->placement.targets.insert(setup->placement.targets.end(), placed.devices.begin(),
                                    placed.devices.end());
  }
  return std::shared_ptr<const RunSetup>(setup);
}

}  // namespace

Result<std::unique_ptr<ServiceRun>> ServiceRun::make(FrameLink& daemon,
                                                     const proto::StartSupervisor& order,
                                                     FileSystem& files, const Clock& clock) {
  PERCHERON_ASSIGN_OR_RETURN(ClusterPlacement placement,
                             read_placement(order.config(), order.node()));
  PERCHERON_ASSIGN_OR_RETURN(std::shared_ptr<const RunSetup> setup,
                             resolve_in_groups(order.config(), placement, files));
  return std::unique_ptr<ServiceRun>(std::make_unique<ServiceRunImpl>(
      daemon, order, clock, std::move(placement), std::move(setup)));
}

}  // namespace percheron
