#include "actors/run_record.h"

#include <map>
#include <string>

#include "actors/service/activity_report.h"

namespace percheron {
namespace {

proto::RunReport::State state_of(const RunStatus& status, const RunActivitySnapshot& seen) {
  if (status.ended_well) {
    return *status.ended_well ? proto::RunReport::DONE : proto::RunReport::FAILED;
  }
  return seen.phase.step == RunPhase::Step::kLoading ? proto::RunReport::STARTING
                                                     : proto::RunReport::RUNNING;
}

// In one process a device is what a worker is in a service.
void add_workers(const RunActivitySnapshot& seen, proto::RunReport& report) {
  std::map<std::string, proto::WorkerState*> of_device;
  const auto add = [&](proto::ActorMessage::Role role, const std::vector<WorkerActivity>& actors) {
    for (size_t i = 0; i < actors.size(); ++i) {
      proto::WorkerState*& worker = of_device[actors[i].device];
      if (!worker) {
        worker = report.add_workers();
        worker->set_device(actors[i].device);
        worker->set_state("ready");
      }
      proto::ActorState& actor = *worker->add_actors();
      actor.set_role(role);
      actor.set_number(static_cast<int32_t>(i));
    }
  };
  add(proto::ActorMessage::TARGET, seen.targets);
  add(proto::ActorMessage::TRAINER, seen.trainers);
}

}  // namespace

proto::ControlReply run_record(const RunMetrics& metrics) {
  const RunStatus status = metrics.status();
  const RunActivitySnapshot seen = metrics.activity().snapshot();
  proto::ControlReply reply;
  proto::NodeRecord& node = *reply.add_nodes();
  node.set_reachable(true);
  for (const auto& [name, health] : seen.devices) {
    proto::DeviceRecord& device = *node.add_devices();
    device.set_device(name);
    device.mutable_facts()->set_power_watts(health.power_watts);
    device.mutable_facts()->set_utilization(health.utilization);
  }
  proto::RunRecord& run = *reply.add_runs();
  run.set_id(status.run);
  proto::RunReport& report = *run.mutable_report();
  report.set_state(state_of(status, seen));
  add_step(status.step, report);
  if (!status.evaluation.acceptance_length_walk.empty()) {
    report.set_acceptance_length(status.evaluation.acceptance_length_walk.back());
  }
  add_workers(seen, report);
  add_activity(seen, report);
  return reply;
}

}  // namespace percheron
