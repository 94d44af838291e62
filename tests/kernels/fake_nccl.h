#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "kernels/cuda/nccl_calls.h"

namespace percheron::cuda {

/// A clock that a look at it moves on, so that time-outs pass without waiting.
class SteppingClock final : public Clock {
 public:
  int64_t monotonic_ns() const override { return now_ += 1'000'000; }
  double unix_seconds() const override { return 0; }

 private:
  mutable std::atomic<int64_t> now_{0};
};

/// Stands in for NCCL and the GPUs: communicators of one id meet in this process, their exchanges
/// are done when all ranks have put them into their streams, and faults can be planted. What the
/// real library forbids is counted in misuses().
class FakeNccl final : public NcclCalls {
 public:
  /// The work in a GPU's stream.
  struct FakeStream {
    int outstanding = 0;
  };

  // Faults; set before the calls that they concern.
  std::set<int> silent_ranks;            // never connect
  std::map<int, NcclCode> call_errors;   // of ncclAllReduce, by rank
  std::map<int, NcclCode> later_errors;  // of ncclCommGetAsyncError after an ncclAllReduce
  std::optional<NcclCode> id_error;      // of ncclGetUniqueId

  int misuses() const;
  int memberships() const;  // ids given out
  int alive() const;        // communicators that are not freed

  NcclCode get_unique_id(NcclId* id) override;
  NcclCode comm_init_rank_config(NcclComm* comm, DeviceId device, int size, const NcclId& id,
                                 int rank) override;
  NcclCode comm_get_async_error(NcclComm comm, NcclCode* error) override;
  NcclCode group_start() override;
  NcclCode group_end() override;
  NcclCode all_reduce(const void* x, void* sum, size_t count, NcclComm comm, void* stream) override;
  NcclCode comm_abort(NcclComm comm) override;
  std::string error_text(NcclCode code, NcclComm comm) override;
  Result<StreamState> stream_state(void* stream) override;

 private:
  struct Exchange {
    const float* x;
    float* sum;
    size_t count;
    FakeStream* stream;
  };
  struct Clique;
  struct Comm {
    Clique* clique;
    int rank;
    bool freed = false;
    std::optional<NcclCode> error;
    std::vector<Exchange> exchanges;
    size_t done = 0;
  };
  struct Clique {
    int size = 0;
    std::map<int, Comm*> ranks;
  };

  /// The communicator, if it may be used; else a misuse. Needs the lock.
  Comm* usable(NcclComm comm);
  void complete(Clique& clique);

  mutable std::mutex mutex_;
  std::map<NcclId, Clique> cliques_;
  std::vector<std::unique_ptr<Comm>> comms_;
  int ids_ = 0, misuses_ = 0;
};

}  // namespace percheron::cuda
