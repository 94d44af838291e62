#include "kernels/local_device_collective.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "kernels/thread_rendezvous.h"

namespace percheron {
namespace {

/// Elements that are summed at a time, in a cache of the processor.
constexpr int64_t kBlock = 2048;

/// What the ranks of one group share: where they meet and what each of them reduces.
struct Group {
  Group(int size, const DeviceCollectiveOptions& given)
      : meeting(size), tensors(static_cast<size_t>(size)), options(given) {}

  Rendezvous meeting;
  std::vector<std::span<const ReducedTensor>> tensors;  // by rank; the callers' memory
  const DeviceCollectiveOptions options;
};

class LocalDeviceCollective final : public DeviceCollective {
 public:
  using DeviceCollective::all_reduce_sum;

  LocalDeviceCollective(std::shared_ptr<Group> group, int rank, DeviceCopy copy)
      : group_(std::move(group)), rank_(rank), copy_(copy) {}
  ~LocalDeviceCollective() override {
    group_->meeting.abort("rank " + std::to_string(rank_) + " left the group");
  }

  int rank() const override { return rank_; }
  int size() const override { return group_->meeting.size(); }

  void all_reduce_sum(Stream& stream, std::span<const ReducedTensor> tensors) override {
    const Status status = reduce(stream, tensors);
    if (!status.ok()) stream.fail(status);
  }

  Status wait_idle(Stream& stream) override { return stream.wait_idle(); }

  void abort(const std::string& why) override { group_->meeting.abort(why); }

 private:
  Status reduce(Stream& stream, std::span<const ReducedTensor> tensors) {
    if (copy_ != nullptr) {
      PERCHERON_RETURN_IF_ERROR(stage(stream, tensors));
    }
    // The sums are the host's work, so what was put into the stream must be done.
    PERCHERON_RETURN_IF_ERROR(settle(stream));
    const std::span<const ReducedTensor> summed = copy_ == nullptr ? tensors : staged_;
    PERCHERON_RETURN_IF_ERROR(group_->meeting.enter(
        rank_, [&] { group_->tensors[static_cast<size_t>(rank_)] = summed; },
        group_->options.timeout_seconds));
    for (size_t i = 0; i < summed.size(); ++i) sum_share(i);
    group_->meeting.leave(rank_);
    for (size_t i = 0; copy_ != nullptr && i < tensors.size(); ++i) {
      copy_(stream, tensors[i].sum.data(), staged_[i].sum.data(), tensors[i].sum.bytes());
    }
    return ok_status();
  }

  Status settle(Stream& stream) {
    const Status status = stream.wait_idle();
    if (!status.ok()) {
      abort("rank " + std::to_string(rank_) + " failed: " + status.message());
    }
    return status;
  }

  /// Copies the tensors into host memory, where they are summed in place.
  Status stage(Stream& stream, std::span<const ReducedTensor> tensors) {
    size_t elements = 0;
    for (const ReducedTensor& tensor : tensors) {
      PERCHERON_CHECK(tensor.x.dtype() == DType::kF32 && tensor.x.contiguous() &&
                          tensor.sum.contiguous() && tensor.sum.bytes() == tensor.x.bytes(),
                      "tensors that are summed are contiguous, f32 and of one shape");
      elements += static_cast<size_t>(tensor.x.elements());
    }
    if (elements > staging_.size()) {
      PERCHERON_RETURN_IF_ERROR(settle(stream));  // It may still read the last sums.
      staging_.resize(elements);
    }
    staged_.clear();
    float* next = staging_.data();
    for (const ReducedTensor& tensor : tensors) {
      const TensorView view(next, DType::kF32, {tensor.x.elements()});
      staged_.push_back({view, view});
      copy_(stream, next, tensor.x.data(), tensor.x.bytes());
      next += tensor.x.elements();
    }
    return ok_status();
  }

  /// Each rank sums its share of tensor `index` over all ranks, in rank order, and writes it to
  /// all: the bits do not depend on who came first.
  void sum_share(size_t index) {
    const int64_t count = group_->tensors[0][index].x.elements();
    for (const auto& tensors : group_->tensors) {
      PERCHERON_CHECK(tensors.size() == group_->tensors[0].size() &&
                          tensors[index].x.elements() == count &&
                          tensors[index].sum.elements() == count && tensors[index].x.contiguous() &&
                          tensors[index].sum.contiguous(),
                      "ranks reduce different tensors");
    }
    const int64_t end = count * (rank_ + 1) / size();
    std::array<float, kBlock> sum;
    for (int64_t begin = count * rank_ / size(); begin < end; begin += kBlock) {
      const int64_t length = std::min(kBlock, end - begin);
      std::copy_n(group_->tensors[0][index].x.as<float>() + begin, length, sum.begin());
      for (size_t rank = 1; rank < group_->tensors.size(); ++rank) {
        const float* values = group_->tensors[rank][index].x.as<float>() + begin;
        for (int64_t i = 0; i < length; ++i) sum[static_cast<size_t>(i)] += values[i];
      }
      for (const auto& tensors : group_->tensors) {
        std::copy_n(sum.begin(), length, tensors[index].sum.as<float>() + begin);
      }
    }
  }

  std::shared_ptr<Group> group_;
  int rank_;
  const DeviceCopy copy_;
  // With copy_: the tensors of the last call in host memory.
  std::vector<float> staging_;
  std::vector<ReducedTensor> staged_;
};

}  // namespace

DeviceCollectives make_local_device_collectives(int size, const DeviceCollectiveOptions& options,
                                                DeviceCopy copy) {
  PERCHERON_CHECK(size >= 1, "a group needs at least one rank");
  const auto group = std::make_shared<Group>(size, options);
  DeviceCollectives ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(std::make_unique<LocalDeviceCollective>(group, rank, copy));
  }
  return ranks;
}

}  // namespace percheron
