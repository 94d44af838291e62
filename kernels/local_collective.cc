#include <algorithm>
#include <vector>

#include "kernels/collective.h"
#include "kernels/thread_rendezvous.h"

namespace percheron {
namespace {

/// What the ranks of one group share: where they meet and where each rank's values lie.
class Group {
 public:
  explicit Group(int size) : meeting_(size), values_(static_cast<size_t>(size)) {}

  int size() const { return meeting_.size(); }
  void* values(int rank) const { return values_[static_cast<size_t>(rank)].data; }
  size_t bytes(int rank) const { return values_[static_cast<size_t>(rank)].bytes; }

  Status enter(int rank, void* data, size_t bytes) {
    return meeting_.enter(rank, [&] { values_[static_cast<size_t>(rank)] = {data, bytes}; });
  }
  void leave(int rank) { meeting_.leave(rank); }
  void abort() { meeting_.abort("a member left the group or aborted it; form a new group"); }

 private:
  struct Values {
    void* data = nullptr;
    size_t bytes = 0;
  };

  Rendezvous meeting_;
  std::vector<Values> values_;
};

class LocalCollective final : public Collective {
 public:
  LocalCollective(std::shared_ptr<Group> group, int rank) : group_(std::move(group)), rank_(rank) {}
  ~LocalCollective() override { group_->abort(); }

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }
  Status all_reduce_sum(std::span<float> values) override { return reduce(values); }
  Status all_reduce_sum(std::span<double> values) override { return reduce(values); }

  Status broadcast(std::span<float> values) override {
    PERCHERON_RETURN_IF_ERROR(group_->enter(rank_, values.data(), values.size_bytes()));
    check_sizes(values.size_bytes());
    if (rank_ != 0) {
      const auto* source = static_cast<const float*>(group_->values(0));
      std::copy_n(source, values.size(), values.data());
    }
    group_->leave(rank_);
    return ok_status();
  }

  void abort() override { group_->abort(); }

 private:
  void check_sizes(size_t bytes) const {
    for (int rank = 0; rank < size(); ++rank) {
      PERCHERON_CHECK(group_->bytes(rank) == bytes, "ranks reduce different numbers of values");
    }
  }

  /// Each rank sums its share of the elements over all ranks, in rank order, and writes it to all:
  /// the bits do not depend on who came first.
  template <class T>
  Status reduce(std::span<T> values) {
    PERCHERON_RETURN_IF_ERROR(group_->enter(rank_, values.data(), values.size_bytes()));
    check_sizes(values.size_bytes());
    const size_t begin = values.size() * rank_ / size();
    const size_t end = values.size() * (rank_ + 1) / size();
    for (size_t i = begin; i < end; ++i) {
      T sum = static_cast<const T*>(group_->values(0))[i];
      for (int rank = 1; rank < size(); ++rank) {
        sum += static_cast<const T*>(group_->values(rank))[i];
      }
      for (int rank = 0; rank < size(); ++rank) static_cast<T*>(group_->values(rank))[i] = sum;
    }
    group_->leave(rank_);
    return ok_status();
  }

  std::shared_ptr<Group> group_;
  int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Collective>> make_local_collectives(int size) {
  PERCHERON_CHECK(size >= 1, "a group needs at least one rank");
  auto group = std::make_shared<Group>(size);
  std::vector<std::unique_ptr<Collective>> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(std::make_unique<LocalCollective>(group, rank));
  }
  return ranks;
}

}  // namespace percheron
