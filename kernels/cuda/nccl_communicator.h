#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "kernels/cuda/nccl_calls.h"
#include "kernels/device_collective.h"

namespace percheron::cuda {

/// Who a communicator is among the ranks of one membership. A new membership has a new id.
struct NcclMember {
  DeviceId device;
  int rank = 0, size = 1;
  NcclId id{};
};

/// One rank's end of a NCCL communicator that never blocks in the library: every wait polls, looks
/// for errors that come from elsewhere, and gives up after a time. After an error the communicator
/// is aborted, which ends its kernels, and stays so.
class NcclCommunicator {
 public:
  /// `calls` and `clock` are borrowed. join() must follow.
  NcclCommunicator(NcclCalls& calls, const Clock& clock, const NcclMember& member,
                   double timeout_seconds);
  ~NcclCommunicator() { abort("the communicator is gone"); }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  /// Begins to connect; other ranks may be told to by the same thread.
  Status begin();
  /// Waits until all ranks are connected.
  Status join();

  const NcclMember& member() const { return member_; }
  /// Puts one exchange into `stream`, a cudaStream_t of the member's device.
  Status all_reduce_sum(void* stream, std::span<const ReducedTensor> tensors);
  /// Waits until `stream` is idle.
  Status wait_idle(void* stream);
  /// kUnavailable with this reason for every pending and later call; the first one counts. Any
  /// thread.
  void abort(const std::string& why);

 private:
  /// Ok, or what NCCL says about `call`.
  Status check(NcclCode code, const char* call);
  /// The communicator's own errors: ok while it works, `*in_progress` while it is not ready.
  Status poll(bool* in_progress);
  /// Waits for what a call began. The time-out's message says what was waited for.
  Status settle(const char* call);
  Status timed_out(const char* what);
  Status enqueue(void* stream, std::span<const ReducedTensor> tensors);
  /// Aborts with this status, which is returned.
  Status give_up(Status why);
  std::string where() const;

  NcclCalls& calls_;
  const Clock& clock_;
  const NcclMember member_;
  const double timeout_seconds_;
  std::mutex mutex_;  // every call of NCCL is made under it
  NcclComm comm_ = nullptr;
  std::string aborted_;  // why; empty while the communicator works
};

}  // namespace percheron::cuda
