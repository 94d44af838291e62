#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace percheron {

/// Where the threads of one group meet: a barrier that can be aborted and that knows who is late.
class Rendezvous {
 public:
  explicit Rendezvous(int size) : here_(static_cast<size_t>(size), false) {}

  int size() const { return static_cast<int>(here_.size()); }

  /// Runs `publish`, then waits for all ranks. kUnavailable, on every rank, if the group is aborted
  /// before the last one comes, or if `timeout_seconds` pass, which aborts it.
  Status enter(int rank, const std::function<void()>& publish,
               std::optional<double> timeout_seconds = std::nullopt);

  /// Waits until all ranks are done with what they published. Not ended by an abort: nobody waits
  /// for anything between enter() and leave(), and what is published must outlive its readers.
  void leave(int rank);

  /// Any thread; the first reason counts.
  void abort(const std::string& why);

 private:
  /// Counts the caller in; returns the round whose end it has to wait for. Needs the lock.
  uint64_t arrive(int rank);
  void abort_locked(const std::string& why);
  std::string late_ranks() const;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> here_;  // by rank, in this round
  int arrived_ = 0;
  uint64_t round_ = 0;
  std::optional<std::string> aborted_;  // why
};

}  // namespace percheron
