#include "actors/scratch_reservation.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "actors/run_memory.h"
#include "actors/run_plan.h"
#include "base/units.h"

namespace percheron {
namespace {

DeviceWorker& worker_of(std::span<DeviceWorker* const> workers, DeviceId id) {
  const auto found = std::find_if(workers.begin(), workers.end(), [id](const DeviceWorker* worker) {
    return worker->info().id == id;
  });
  PERCHERON_CHECK(found != workers.end(), "every device of a placement has a worker");
  return **found;
}

}  // namespace

Result<std::vector<std::string>> reserve_scratch(std::shared_ptr<const RunSetup> setup,
                                                 FileSystem& files,
                                                 std::shared_ptr<const TargetFiles> target,
                                                 std::span<DeviceWorker* const> workers) {
  RunPlan plan;
  plan.setup = std::move(setup);
  plan.devices = plan_devices(plan.setup->placement);
  std::erase_if(plan.devices, [](const DevicePlan& d) { return d.id.kind == DeviceKind::kCpu; });
  std::vector<std::string> lines;
  if (plan.devices.empty()) return lines;
  PERCHERON_RETURN_IF_ERROR(count_memory(files, plan, std::move(target)));
  MachineMemory memory;
  for (const DevicePlan& device : plan.devices) {
    const DeviceInfo& info = worker_of(workers, device.id).info();
    if (info.own_memory) memory.devices[device.id] = info.free_bytes;
  }
  PERCHERON_RETURN_IF_ERROR(check_plan_fits(plan, memory));
  for (const DevicePlan& device : plan.devices) {
    PERCHERON_RETURN_IF_ERROR(worker_of(workers, device.id).run([&](Context& context) -> Status {
      return context.arena.reserve(device.scratch_bytes)
          .with_context("scratch memory of a step, as planned");
    }));
    lines.push_back(fmt::format("{}: {} of scratch memory are reserved, {} are planned for weights",
                                to_string(device.id), format_bytes(device.scratch_bytes),
                                format_bytes(device.target_bytes + device.trainer_bytes)));
  }
  return lines;
}

}  // namespace percheron
