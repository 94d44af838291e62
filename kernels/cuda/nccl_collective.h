#pragma once

#include <memory>
#include <span>

#include "base/clock.h"
#include "kernels/cuda/nccl_calls.h"
#include "kernels/device_collective.h"

namespace percheron::cuda {

/// Connects a new membership of these GPUs, all in this process; `clock` is borrowed. kUnavailable
/// or kInternal names the rank and the call of NCCL that failed; then no rank is connected. A rank
/// that fails should abort(): one that only goes is missed by the others after the time-out.
Result<DeviceCollectives> make_nccl_collectives(std::shared_ptr<NcclCalls> calls,
                                                const Clock& clock,
                                                std::span<const DeviceId> devices,
                                                const DeviceCollectiveOptions& options);

}  // namespace percheron::cuda
