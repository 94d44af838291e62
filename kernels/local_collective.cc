#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "kernels/collective.h"

namespace percheron {
namespace {

/// What the ranks of one group share: a barrier that can be aborted and where each rank's values
/// lie.
class Group {
 public:
  explicit Group(int size) : values_(size) {}

  int size() const { return static_cast<int>(values_.size()); }
  void* values(int rank) const { return values_[rank].data; }
  size_t bytes(int rank) const { return values_[rank].bytes; }

  /// Publishes this rank's values and waits for all; false, on every rank, if the group was aborted
  /// before the last one came.
  bool enter(int rank, void* data, size_t bytes) {
    std::unique_lock lock(mutex_);
    if (aborted_) return false;
    values_[rank] = {data, bytes};
    const uint64_t round = arrive(lock);
    changed_.wait(lock, [&] { return aborted_ || round_ != round; });
    return round_ != round;
  }

  /// Waits until all ranks are done with each other's values. Not ended by an abort: nobody waits
  /// for anything between enter() and leave(), and values must outlive their readers.
  void leave() {
    std::unique_lock lock(mutex_);
    const uint64_t round = arrive(lock);
    changed_.wait(lock, [&] { return round_ != round; });
  }

  void abort() {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    changed_.notify_all();
  }

 private:
  struct Values {
    void* data = nullptr;
    size_t bytes = 0;
  };

  /// Counts the caller in; returns the round whose end it has to wait for.
  uint64_t arrive(const std::unique_lock<std::mutex>&) {
    const uint64_t round = round_;
    if (++arrived_ == size()) {
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
    }
    return round;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Values> values_;
  uint64_t round_ = 0;
  int arrived_ = 0;
  bool aborted_ = false;
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
    if (!group_->enter(rank_, values.data(), values.size_bytes())) return left();
    check_sizes(values.size_bytes());
    if (rank_ != 0) {
      const auto* source = static_cast<const float*>(group_->values(0));
      std::copy_n(source, values.size(), values.data());
    }
    group_->leave();
    return ok_status();
  }

  void abort() override { group_->abort(); }

 private:
  static Status left() {
    return unavailable("a member left the group or aborted it; form a new group");
  }

  void check_sizes(size_t bytes) const {
    for (int rank = 0; rank < size(); ++rank) {
      PERCHERON_CHECK(group_->bytes(rank) == bytes, "ranks reduce different numbers of values");
    }
  }

  /// Each rank sums its share of the elements over all ranks, in rank order, and writes it to all:
  /// the bits do not depend on who came first.
  template <class T>
  Status reduce(std::span<T> values) {
    if (!group_->enter(rank_, values.data(), values.size_bytes())) return left();
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
    group_->leave();
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
