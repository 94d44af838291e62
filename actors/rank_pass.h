#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "base/status.h"

namespace percheron {

/// One piece of work that all ranks of a group do at the same time, each on its own thread: ranks
/// begin together, so that none waits inside the work for one that is busy elsewhere, and the first
/// failure is told at once, so that the others can be released.
class RankPass {
 public:
  struct Failure {
    int rank = 0;
    Status status;
  };

  /// `failed` is called once, by the first rank that fails, on its thread.
  RankPass(int size, std::function<void(const Failure&)> failed)
      : size_(size), failed_(std::move(failed)) {}

  /// Waits until every rank is here, then does `work`.
  void run(int rank, const std::function<Status()>& work);
  /// Instead of run(): this rank's thread has stopped.
  void drop(int rank);
  /// Waits until every rank has run or was dropped; the first failure, if any.
  std::optional<Failure> wait();

 private:
  void finish(int rank, Status status);

  const int size_;
  const std::function<void(const Failure&)> failed_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int begun_ = 0, finished_ = 0;
  std::optional<Failure> failure_;
};

/// One rank's part of a pass, as a job that may be dropped: then the pass is told.
class RankPart {
 public:
  RankPart(std::shared_ptr<RankPass> pass, int rank) : pass_(std::move(pass)), rank_(rank) {}
  ~RankPart() {
    if (pass_) pass_->drop(rank_);
  }
  RankPart(const RankPart&) = delete;
  RankPart& operator=(const RankPart&) = delete;

  void run(const std::function<Status()>& work) { std::exchange(pass_, nullptr)->run(rank_, work); }

 private:
  std::shared_ptr<RankPass> pass_;
  int rank_;
};

}  // namespace percheron
