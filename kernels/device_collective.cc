#include "kernels/device_collective.h"

#include <algorithm>
#include <set>

#include "kernels/cuda/emulated_device.h"
#include "kernels/cuda/plugin_loader.h"
#include "kernels/local_device_collective.h"

namespace percheron {
namespace {

/// Where memory is only counted, nothing is summed.
class PlanningCollective final : public DeviceCollective {
 public:
  PlanningCollective(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void all_reduce_sum(Stream&, std::span<const ReducedTensor>) override {}
  Status wait_idle(Stream& stream) override { return stream.wait_idle(); }
  void abort(const std::string&) override {}

 private:
  int rank_, size_;
};

std::string names_of(std::span<const DeviceId> devices) {
  std::string names;
  for (const DeviceId id : devices) names += (names.empty() ? "" : ", ") + to_string(id);
  return names;
}

}  // namespace

Result<DeviceCollectives> make_device_collectives(std::span<const DeviceId> devices,
                                                  const DeviceCollectiveOptions& options) {
  PERCHERON_CHECK(!devices.empty(), "a group needs at least one rank");
  const DeviceKind kind = devices.front().kind;
  for (const DeviceId id : devices) {
    if (id.kind != kind) {
      return invalid_argument("devices of several kinds can't sum with each other: " +
                              names_of(devices));
    }
  }
  const int size = static_cast<int>(devices.size());
  if (kind == DeviceKind::kPlanning) {
    DeviceCollectives ranks;
    for (int rank = 0; rank < size; ++rank) {
      ranks.push_back(std::make_unique<PlanningCollective>(rank, size));
    }
    return ranks;
  }
#ifdef PERCHERON_EMULATOR
  if (kind == DeviceKind::kEmulated) {
    return make_local_device_collectives(size, options, copy_emulated);
  }
#endif
  if (kind != DeviceKind::kCuda) return make_local_device_collectives(size, options);
  if (std::set<DeviceId>(devices.begin(), devices.end()).size() != devices.size()) {
    return invalid_argument("NCCL takes each GPU once: " + names_of(devices));
  }
  return open_cuda_collectives(devices, options, cuda_plugin_path());
}

}  // namespace percheron
