#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/device.h"

namespace percheron {

/// A tensor and where its sum over all ranks goes: f32, contiguous, of one shape. Both may be the
/// same memory.
struct ReducedTensor {
  ConstTensorView x;
  TensorView sum;
};

/// One rank's end of a fixed group of devices that sum tensors in their own memory. The ranks make
/// the same calls in the same order, each from one thread at a time. A group that failed stays
/// failed: its members leave it and form a new one.
class DeviceCollective {
 public:
  virtual ~DeviceCollective() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Sums each tensor over all ranks in the order of `stream`, which is of the rank's device; all
  /// ranks get the same bits. One call is one exchange, however many tensors it names. A failure is
  /// kept by the stream, as an operation's is; sums are then undefined.
  virtual void all_reduce_sum(Stream& stream, std::span<const ReducedTensor> tensors) = 0;
  void all_reduce_sum(Stream& stream, const TensorView& x) {
    const ReducedTensor in_place{x, x};
    all_reduce_sum(stream, std::span(&in_place, 1));
  }
  /// As stream.wait_idle(), but not held up by a rank that is lost: kUnavailable after the group's
  /// time-out, or with the reason of abort().
  virtual Status wait_idle(Stream& stream) = 0;
  /// Ends every pending and later call of every rank with kUnavailable and this reason; the first
  /// one counts. Any thread.
  virtual void abort(const std::string& why) = 0;
};

using DeviceCollectives = std::vector<std::unique_ptr<DeviceCollective>>;

struct DeviceCollectiveOptions {
  /// How long a rank waits for the others before it gives the group up.
  double timeout_seconds = 300;
};

/// A group of these devices, rank r on devices[r], in this process: through the host's memory for
/// cpu:N and emulated:N, which sums in rank order and waits for all ranks in all_reduce_sum(); by
/// NCCL for cuda:N, whose order is NCCL's own. Planning devices sum nothing. kInvalidArgument for
/// devices of several kinds, or one cuda:N twice; kNotFound says what of CUDA or NCCL is missing;
/// kUnavailable if NCCL does not connect.
Result<DeviceCollectives> make_device_collectives(std::span<const DeviceId> devices,
                                                  const DeviceCollectiveOptions& options);

}  // namespace percheron
