#include "tests/kernels/fake_nccl.h"

#include <algorithm>

namespace percheron::cuda {
namespace {

constexpr NcclCode kInvalidUsage{5};

thread_local int group_depth = 0;

}  // namespace

int FakeNccl::misuses() const {
  const std::lock_guard lock(mutex_);
  return misuses_;
}

int FakeNccl::memberships() const {
  const std::lock_guard lock(mutex_);
  return ids_;
}

int FakeNccl::alive() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(
      std::count_if(comms_.begin(), comms_.end(), [](const auto& comm) { return !comm->freed; }));
}

NcclCode FakeNccl::get_unique_id(NcclId* id) {
  const std::lock_guard lock(mutex_);
  if (id_error) return *id_error;
  id->fill(0);
  (*id)[0] = static_cast<char>(++ids_);
  return NcclCode::kSuccess;
}

NcclCode FakeNccl::comm_init_rank_config(NcclComm* comm, DeviceId, int size, const NcclId& id,
                                         int rank) {
  const std::lock_guard lock(mutex_);
  Clique& clique = cliques_[id];
  if (clique.size != 0 && clique.size != size) ++misuses_;
  clique.size = size;
  comms_.push_back(std::make_unique<Comm>(Comm{&clique, rank, false, {}, {}, 0}));
  *comm = comms_.back().get();
  if (silent_ranks.count(rank) == 0 && !clique.ranks.emplace(rank, comms_.back().get()).second) {
    ++misuses_;  // two of one rank
  }
  return NcclCode::kInProgress;
}

NcclCode FakeNccl::comm_get_async_error(NcclComm comm, NcclCode* error) {
  const std::lock_guard lock(mutex_);
  Comm* const own = usable(comm);
  if (own == nullptr) return kInvalidUsage;
  const bool connected = static_cast<int>(own->clique->ranks.size()) == own->clique->size;
  *error = own->error.value_or(connected ? NcclCode::kSuccess : NcclCode::kInProgress);
  return NcclCode::kSuccess;
}

NcclCode FakeNccl::group_start() {
  ++group_depth;
  return NcclCode::kSuccess;
}

NcclCode FakeNccl::group_end() {
  if (--group_depth < 0) {
    const std::lock_guard lock(mutex_);
    ++misuses_;
  }
  return NcclCode::kInProgress;
}

NcclCode FakeNccl::all_reduce(const void* x, void* sum, size_t count, NcclComm comm, void* stream) {
  const std::lock_guard lock(mutex_);
  Comm* const own = usable(comm);
  if (own == nullptr) return kInvalidUsage;
  if (const auto planted = call_errors.find(own->rank); planted != call_errors.end()) {
    return planted->second;
  }
  auto* const queue = static_cast<FakeStream*>(stream);
  ++queue->outstanding;
  own->exchanges.push_back({static_cast<const float*>(x), static_cast<float*>(sum), count, queue});
  if (const auto later = later_errors.find(own->rank); later != later_errors.end()) {
    own->error = later->second;
  }
  complete(*own->clique);
  return NcclCode::kInProgress;
}

void FakeNccl::complete(Clique& clique) {
  if (static_cast<int>(clique.ranks.size()) != clique.size) return;
  for (;;) {
    for (const auto& [rank, comm] : clique.ranks) {
      if (comm->freed || comm->error || comm->done == comm->exchanges.size()) return;
    }
    const Exchange& first =
        clique.ranks.begin()->second->exchanges[clique.ranks.begin()->second->done];
    std::vector<float> total(first.count, 0.f);
    for (const auto& [rank, comm] : clique.ranks) {
      const Exchange& exchange = comm->exchanges[comm->done];
      if (exchange.count != first.count) ++misuses_;
      for (size_t i = 0; i < first.count; ++i) total[i] += exchange.x[i];
    }
    for (const auto& [rank, comm] : clique.ranks) {
      const Exchange& exchange = comm->exchanges[comm->done++];
      std::copy(total.begin(), total.end(), exchange.sum);
      --exchange.stream->outstanding;
    }
  }
}

NcclCode FakeNccl::comm_abort(NcclComm comm) {
  const std::lock_guard lock(mutex_);
  Comm* const own = usable(comm);
  if (own == nullptr) return kInvalidUsage;
  own->freed = true;
  while (own->done < own->exchanges.size()) --own->exchanges[own->done++].stream->outstanding;
  return NcclCode::kSuccess;
}

std::string FakeNccl::error_text(NcclCode code, NcclComm) {
  switch (static_cast<int>(code)) {
    case 2: return "unhandled system error (no route to host)";
    case 6: return "remote process exited";
    default: return "error " + std::to_string(static_cast<int>(code));
  }
}

Result<StreamState> FakeNccl::stream_state(void* stream) {
  const std::lock_guard lock(mutex_);
  return static_cast<FakeStream*>(stream)->outstanding > 0 ? StreamState::kBusy
                                                           : StreamState::kIdle;
}

FakeNccl::Comm* FakeNccl::usable(NcclComm comm) {
  Comm* const own = static_cast<Comm*>(comm);
  if (own != nullptr && !own->freed) return own;
  ++misuses_;
  return nullptr;
}

}  // namespace percheron::cuda
