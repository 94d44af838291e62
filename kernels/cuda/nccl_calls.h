#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "base/status.h"
#include "kernels/device.h"

namespace percheron::cuda {

/// What NCCL answers, by ncclResult_t's numbers.
enum class NcclCode : int { kSuccess = 0, kInProgress = 7 };

/// ncclUniqueId: what the ranks of one membership find each other by.
using NcclId = std::array<char, 128>;
/// ncclComm_t
using NcclComm = void*;

enum class StreamState { kBusy, kIdle };

/// The calls of NCCL that a communicator makes, one function each, so that tests can stand in for
/// the library and the GPUs. Names are NCCL's. Thread-safe as the library is: one communicator is
/// used by one thread at a time.
class NcclCalls {
 public:
  virtual ~NcclCalls() = default;

  virtual NcclCode get_unique_id(NcclId* id) = 0;
  /// ncclCommInitRankConfig on `device` with blocking = 0: returns at once, mostly with
  /// kInProgress.
  virtual NcclCode comm_init_rank_config(NcclComm* comm, DeviceId device, int size,
                                         const NcclId& id, int rank) = 0;
  virtual NcclCode comm_get_async_error(NcclComm comm, NcclCode* error) = 0;
  virtual NcclCode group_start() = 0;
  virtual NcclCode group_end() = 0;
  /// ncclAllReduce with ncclFloat32 and ncclSum.
  virtual NcclCode all_reduce(const void* x, void* sum, size_t count, NcclComm comm,
                              void* stream) = 0;
  /// Frees the communicator too. ncclCommDestroy is not used: it waits for the other ranks.
  virtual NcclCode comm_abort(NcclComm comm) = 0;
  /// ncclGetErrorString, and ncclGetLastError where it says more.
  virtual std::string error_text(NcclCode code, NcclComm comm) = 0;

  /// cudaStreamQuery
  virtual Result<StreamState> stream_state(void* stream) = 0;
};

}  // namespace percheron::cuda
