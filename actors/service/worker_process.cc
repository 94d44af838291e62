#include "actors/service/worker_process.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "actors/run_assembly.h"
#include "actors/run_fingerprint.h"
#include "actors/service/frame_link.h"
#include "actors/service/heartbeat.h"
#include "actors/service/remote_actors.h"
#include "actors/service/run_owner.h"
#include "actors/service/worker_counts.h"
#include "actors/service/worker_features.h"
#include "base/counted.h"
#include "base/log.h"
#include "kernels/cpu/gloo_collective.h"

namespace percheron {
namespace {

constexpr std::string_view kProduced = "Produced";  // the message of a target

// Keeps what is said while a worker is set up, for the run's log.
class Notes final : public RunObserver {
 public:
  void on_event(const std::string& text) override { texts.push_back(text); }
  std::vector<std::string> texts;
};

class WorkerProcess {
 public:
  WorkerProcess(std::unique_ptr<FrameChannel> daemon, FileSystem& files, const Clock& clock)
      : files_(files), clock_(clock), link_(std::move(daemon), clock), system_(config_) {}
  ~WorkerProcess();

  Status run();

 private:
  Status take(ReceivedFrame received);
  Status start(const proto::StartWorker& order);
  /// The run as this process has it: its devices and roles alone.
  Result<proto::Run> own_run() const;
  Status load(proto::WorkerLoaded& loaded);
  Status prepare(const proto::PrepareWorker& order);
  Status make_places(const proto::PrepareWorker& order, RunObserver& notes,
                     proto::WorkerPrepared& prepared);
  void start_actors();
  void tell_supervisor(proto::Frame frame);
  void tell_counts();

  FileSystem& files_;
  const Clock& clock_;
  FrameLink link_;
  Heartbeat heart_{link_};
  proto::StartWorker order_;
  proto::Endpoint self_, supervisor_;
  std::shared_ptr<RunSetup> setup_;
  std::string target_hash_;
  std::unique_ptr<RunParts> parts_;
  WorkerFeatures* features_ = nullptr;  // the exchange of parts_
  ActorSystemConfig config_;
  caf::actor_system system_;
  std::shared_ptr<Peers> peers_;  // null until the actors are started
};

WorkerProcess::~WorkerProcess() {
  // No thread may speak to an actor once the system goes.
  if (features_) features_->close();
  if (parts_) {
    for (TrainerPlace& trainer : parts_->trainers) {
      if (trainer.group) trainer.group->close();
      if (trainer.reducer) trainer.reducer->stop();
      if (trainer.uploader) trainer.uploader->stop();
      if (trainer.disk) trainer.disk->stop();
    }
    for (const TargetPlace& target : parts_->targets) {
      if (target.finisher) target.finisher->stop();
    }
    for (const auto& worker : parts_->workers) worker->stop();
  }
  if (!peers_) return;
  for (caf::actor* actor : {&peers_->supervisor, &peers_->sampler, &peers_->mailbox}) {
    caf::anon_send_exit(*actor, caf::exit_reason::user_shutdown);
  }
  for (auto* actors : {&peers_->targets, &peers_->trainers}) {
    for (const caf::actor& actor : actors->all()) {
      caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
    }
  }
  system_.await_all_actors_done();
  peers_->clear();
}

void WorkerProcess::tell_supervisor(proto::Frame frame) {
  *frame.mutable_to() = supervisor_;
  *frame.mutable_from() = self_;
  link_.send(std::move(frame));
}

// Before what was made of the samples: when a run ends, all have been told.
void WorkerProcess::tell_counts() {
  FeatureSources sources;
  if (parts_->offline) sources.files = parts_->offline->counters();
  if (parts_->cache) sources.cache = parts_->cache->counters();
  if (!sources.files && !sources.cache) return;
  proto::Frame frame;
  *frame.mutable_counts() = counts_of(sources, order_.attempt());
  tell_supervisor(std::move(frame));
}

Status WorkerProcess::run() {
  while (true) {
    Result<ReceivedFrame> received = link_.receive();
    if (!received.ok()) {
      const StatusCode code = received.status().code();
      if (!setup_) {
        return failed_precondition("this command is started by `percheron node` alone");
      }
      // The daemon closes the link when the worker is no longer needed, or has died itself.
      return code == StatusCode::kDataLoss ? received.status() : ok_status();
    }
    const Status status = take(std::move(received).value());
    if (status.ok()) continue;
    link_.turn().rests();
    link_.flush();
    return status;
  }
}

Status WorkerProcess::take(ReceivedFrame received) {
  const proto::Frame& frame = received.frame;
  switch (frame.body_case()) {
    case proto::Frame::kStartWorker: return start(frame.start_worker());
    case proto::Frame::kPrepare: return prepare(frame.prepare());
    case proto::Frame::kKnowNodes:
      *order_.mutable_nodes() = frame.know_nodes().nodes();
      if (features_)
        features_->know({frame.know_nodes().nodes().begin(), frame.know_nodes().nodes().end()});
      return ok_status();
    case proto::Frame::kFetched:
      if (features_) features_->fetched(frame.fetched(), std::move(received.fd));
      return ok_status();
    case proto::Frame::kRegionsFreed:
      if (features_) features_->freed(frame.regions_freed());
      return ok_status();
    case proto::Frame::kActor: {
      if (!peers_) {
        log_warning("{} came before this worker's actors", frame.actor().type());
        return ok_status();
      }
      const Status delivered = deliver(frame.actor(), *peers_);
      if (!delivered.ok()) log_warning("dropped: {}", delivered.message());
      return ok_status();
    }
    default:
      log_warning("a worker got a frame of kind {}, which is not for it",
                  static_cast<int>(frame.body_case()));
      return ok_status();
  }
}

Status WorkerProcess::start(const proto::StartWorker& order) {
  link_.turn().rests();  // A large target takes its time to load.
  if (setup_) return failed_precondition("a worker is started once");
  order_ = order;
  self_.set_node(order.node());
  self_.set_kind(proto::Endpoint::WORKER);
  self_.set_run(order.run());
  self_.set_device(order.device());
  supervisor_.set_node(order.supervisor_node());
  supervisor_.set_kind(proto::Endpoint::SUPERVISOR);
  supervisor_.set_run(order.run());
  proto::Frame frame;
  proto::WorkerLoaded& loaded = *frame.mutable_loaded();
  loaded.set_attempt(order.attempt());
  const Status status = load(loaded);
  if (!status.ok()) loaded.set_error(status.message());
  tell_supervisor(std::move(frame));
  return status;
}

Result<proto::Run> WorkerProcess::own_run() const {
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<DeviceId> devices,
                             parse_device_group(order_.device()));
  proto::Run run = order_.config();
  proto::Placement& placement = *run.mutable_placement();
  placement.clear_targets();
  placement.clear_trainers();
  placement.clear_tensor_parallel();
  if (order_.targets_size() > 0) {
    for (const DeviceId id : devices) placement.add_targets(to_string(id));
    placement.set_tensor_parallel(static_cast<int64_t>(devices.size()));
  } else {
    placement.add_targets(to_string(devices.front()));
  }
  for (const std::string& device : order_.trainer_devices()) placement.add_trainers(device);
  if (order_.trainers().empty()) placement.add_trainers(to_string(devices.front()));
  if (!placement.has_threads()) {
    const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    placement.set_threads(std::max(1, cores / std::max(1, order_.cpu_devices())));
  }
  return run;
}

Status WorkerProcess::load(proto::WorkerLoaded& loaded) {
  PERCHERON_ASSIGN_OR_RETURN(const proto::Run run, own_run());
  PERCHERON_ASSIGN_OR_RETURN(const std::shared_ptr<const RunSetup> resolved,
                             resolve_run(run, files_));
  setup_ = std::make_shared<RunSetup>(*resolved);
  // What stands for a role that it has not, so that its device is one of the run's.
  if (order_.targets().empty()) setup_->placement.targets.clear();
  if (order_.trainers().empty()) setup_->placement.trainers.clear();
  parts_ = std::make_unique<RunParts>(setup_);
  parts_->files = &files_;
  parts_->clock = &clock_;
  parts_->batches = std::make_shared<BatchSource>(setup_, clock_);
  PERCHERON_RETURN_IF_ERROR(open_devices(*parts_));
  PERCHERON_RETURN_IF_ERROR(load_targets(*parts_));
  target_hash_ = parts_->models.begin()->second->weights_hash();
  loaded.set_target_hash(target_hash_);
  loaded.set_data_hash(setup_->data.train->content_hash());
  if (setup_->data.held_out) loaded.set_held_out_hash(setup_->data.held_out->content_hash());
  const DeviceInfo& info = parts_->workers.front()->info();
  loaded.set_device_text(fmt::format("{}, {}{}", info.description, counted(info.threads, "thread"),
                                     parts_->workers.size() > 1 ? ", on each of its devices" : ""));
  return ok_status();
}

Status WorkerProcess::prepare(const proto::PrepareWorker& order) {
  link_.turn().rests();  // So does a checkpoint.
  if (!parts_ || peers_) return failed_precondition("a worker is prepared once, after it started");
  proto::Frame frame;
  proto::WorkerPrepared& prepared = *frame.mutable_prepared();
  prepared.set_attempt(order_.attempt());
  Notes notes;
  const Status status = make_places(order, notes, prepared);
  for (const std::string& text : notes.texts) prepared.add_notes(text);
  if (!parts_->weights_note.empty()) {
    prepared.mutable_weights()->set_text(parts_->weights_note);
    if (const std::optional<WeightsComparison>& compared = parts_->weights_comparison) {
      prepared.mutable_weights()->set_tokens(compared->tokens);
      prepared.mutable_weights()->set_same_top1(compared->same_top1);
      prepared.mutable_weights()->set_state_difference(compared->state_difference);
    }
  }
  if (status.ok()) {
    start_actors();
  } else {
    prepared.set_error(status.message());
  }
  tell_supervisor(std::move(frame));
  return status;
}

Status WorkerProcess::make_places(const proto::PrepareWorker& order, RunObserver& notes,
                                  proto::WorkerPrepared& prepared) {
  RunParts& parts = *parts_;
  Fingerprint fingerprint = run_fingerprint(*setup_, target_hash_);
  fingerprint.set("data.train", setup_->data.train->content_hash());
  parts.fingerprint = fingerprint.digest();
  if (parts.fingerprint != order.fingerprint()) {
    return failed_precondition(fmt::format(
        "this node's run is {}, the supervisor's {}: are both of the same version and files?",
        parts.fingerprint, order.fingerprint()));
  }
  parts.checkpoint = {setup_, resume_fingerprint(*setup_, target_hash_), parts.batches};
  parts.may_publish = [this, owner = RunOwner{order.generation(), order_.supervisor_node()}] {
    return check_run_owner(files_, setup_->output(), owner);
  };
  // The supervisor counts for all workers and ends the run.
  parts.quarantine = std::make_unique<Quarantine>(1, std::numeric_limits<double>::infinity());
  auto features = std::make_unique<WorkerFeatures>(
      link_, clock_, self_, std::vector<std::string>(order_.nodes().begin(), order_.nodes().end()));
  features_ = features.get();
  parts.exchange = std::move(features);
  if (order_.targets_size() > 0) {
    PERCHERON_RETURN_IF_ERROR(open_offline(parts, target_hash_, notes));
    if (order.compare_weights()) PERCHERON_RETURN_IF_ERROR(compare_weights(parts, notes));
    PERCHERON_RETURN_IF_ERROR(open_cache(parts, fingerprint));
  }
  std::optional<ResumePoint> point;
  if (!order.checkpoint().empty() && order_.trainers_size() > 0) {
    PERCHERON_ASSIGN_OR_RETURN(point,
                               read_run_checkpoint(files_, order.checkpoint(), parts.checkpoint));
  }
  if (order_.trainers_size() > 0) {  // A trainer that is alone may get company.
    GlooOptions options;
    if (order.has_collective_interface()) options.interface = order.collective_interface();
    PERCHERON_ASSIGN_OR_RETURN(parts.collectives,
                               make_gloo_collective_factory(
                                   options, make_directory_rendezvous(files_, order.rendezvous())));
  }
  PERCHERON_RETURN_IF_ERROR(
      make_trainers(parts, point, {order_.trainers().begin(), order_.trainers().end()}));
  for (TrainerPlace& trainer : parts.trainers) {
    PERCHERON_RETURN_IF_ERROR(trainer.worker->run([&](Context& context) -> Status {
      PERCHERON_ASSIGN_OR_RETURN(const uint32_t checksum, trainer.trainer->checksum(context));
      prepared.add_checksums(checksum);
      return ok_status();
    }));
    trainer.disk = std::make_unique<WorkThread>("checkpoint", clock_);
  }
  return ok_status();
}

void WorkerProcess::start_actors() {
  // Places and actors stand at their numbers in the whole run; the others live elsewhere.
  const auto places = [](auto& own, const auto& numbers, int total) {
    std::remove_reference_t<decltype(own)> all(static_cast<size_t>(total));
    for (int i = 0; i < numbers.size(); ++i) {
      all[static_cast<size_t>(numbers[i])] = std::move(own[static_cast<size_t>(i)]);
    }
    own = std::move(all);
  };
  for (int i = 0; i < order_.targets_size(); ++i) {
    parts_->targets.push_back(make_target(*parts_, setup_->placement.targets.front()));
  }
  places(parts_->targets, order_.targets(), order_.targets_total());
  places(parts_->trainers, order_.trainers(), order_.trainers_total());
  const SendActorMessage send = [this](proto::ActorMessage message) {
    if (message.type() == kProduced) tell_counts();
    proto::Frame frame;
    *frame.mutable_actor() = std::move(message);
    tell_supervisor(std::move(frame));
  };
  const auto peers = std::make_shared<Peers>();
  peers->supervisor = start_remote_actor(system_, proto::ActorMessage::SUPERVISOR, 0, send);
  peers->sampler = start_remote_actor(system_, proto::ActorMessage::SAMPLER, 0, send);
  peers->mailbox = start_remote_actor(system_, proto::ActorMessage::MAILBOX, 0, send);
  for (int number : order_.targets()) {
    peers->targets.set(number, start_target(system_, *parts_, peers, number));
  }
  for (int number : order_.trainers()) {
    peers->trainers.set(number, start_trainer(system_, *parts_, peers, number));
  }
  peers_ = peers;
}

}  // namespace

Status run_worker(std::unique_ptr<FrameChannel> daemon, FileSystem& files, const Clock& clock) {
  WorkerProcess worker(std::move(daemon), files, clock);
  return worker.run();
}

}  // namespace percheron
