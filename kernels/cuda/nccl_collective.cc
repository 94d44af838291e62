#include "kernels/cuda/nccl_collective.h"

#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/kernel_stream.h"
#include "kernels/cuda/nccl_communicator.h"

namespace percheron::cuda {
namespace {

/// The communicators of one membership: what ends one of them ends all.
struct Membership {
  std::shared_ptr<NcclCalls> calls;  // before the ranks, which use it to the last
  std::vector<std::unique_ptr<NcclCommunicator>> ranks;

  void abort(const std::string& why) {
    for (const auto& rank : ranks) rank->abort(why);
  }
};

class NcclCollective final : public DeviceCollective {
 public:
  using DeviceCollective::all_reduce_sum;

  NcclCollective(std::shared_ptr<Membership> membership, int rank)
      : membership_(std::move(membership)), own_(*membership_->ranks[static_cast<size_t>(rank)]) {}

  int rank() const override { return own_.member().rank; }
  int size() const override { return own_.member().size; }

  void all_reduce_sum(Stream& stream, std::span<const ReducedTensor> tensors) override {
    for (const ReducedTensor& tensor : tensors) {
      PERCHERON_CHECK(tensor.x.dtype() == DType::kF32 && tensor.x.contiguous() &&
                          tensor.sum.dtype() == DType::kF32 && tensor.sum.contiguous() &&
                          tensor.x.elements() == tensor.sum.elements(),
                      "tensors that are summed are contiguous, f32 and of one shape");
    }
    const Status status = own_.all_reduce_sum(handle(stream), tensors);
    if (status.ok()) return;
    membership_->abort(status.message());
    stream.fail(status);
  }

  Status wait_idle(Stream& stream) override {
    const Status status = own_.wait_idle(handle(stream));
    if (!status.ok()) membership_->abort(status.message());
    // Idle by now, or about to be: an abort ends the kernels that wait for others. Memory that the
    // stream uses may be freed only then.
    const Status own = stream.wait_idle();
    return status.ok() ? own : status;
  }

  void abort(const std::string& why) override { membership_->abort(why); }

 private:
  static void* handle(Stream& stream) { return static_cast<KernelStream&>(stream).queue().stream; }

  std::shared_ptr<Membership> membership_;
  NcclCommunicator& own_;
};

}  // namespace

Result<DeviceCollectives> make_nccl_collectives(std::shared_ptr<NcclCalls> calls,
                                                const Clock& clock,
                                                std::span<const DeviceId> devices,
                                                const DeviceCollectiveOptions& options) {
  NcclId id;
  if (const NcclCode code = calls->get_unique_id(&id); code != NcclCode::kSuccess) {
    return internal_error("ncclGetUniqueId: " + calls->error_text(code, nullptr));
  }
  const auto membership = std::make_shared<Membership>();
  membership->calls = std::move(calls);
  const int size = static_cast<int>(devices.size());
  for (int rank = 0; rank < size; ++rank) {
    membership->ranks.push_back(std::make_unique<NcclCommunicator>(
        *membership->calls, clock, NcclMember{devices[static_cast<size_t>(rank)], rank, size, id},
        options.timeout_seconds));
  }
  Status status;
  for (const auto& rank : membership->ranks) {
    if (status.ok()) status = rank->begin();
  }
  for (const auto& rank : membership->ranks) {
    if (status.ok()) status = rank->join();
  }
  if (!status.ok()) {
    membership->abort(status.message());
    return status;
  }
  DeviceCollectives ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(std::make_unique<NcclCollective>(membership, rank));
  }
  return ranks;
}

}  // namespace percheron::cuda
