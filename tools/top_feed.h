#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "tools/top_source.h"

namespace percheron {

/// Looks at a source again and again and passes orders on to it, on threads of its own, so that a
/// screen never waits.
class TopFeed {
 public:
  /// What has come since it was last taken.
  struct News {
    std::optional<proto::ControlReply> reply;
    std::string lost;                           // why there is none; empty: nothing is wrong
    std::optional<Result<std::string>> answer;  // to the order
  };

  /// Looks every `interval`. `source` is borrowed.
  TopFeed(TopSource& source, std::chrono::milliseconds interval);
  /// Closes the source.
  ~TopFeed();

  News take();
  /// One at a time: the one before must have been answered.
  void order(const TopOrder& order);

 private:
  void look();
  void pass_orders();

  TopSource& source_;
  const std::chrono::milliseconds interval_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  News news_;
  std::optional<TopOrder> order_;
  std::thread looker_, orderer_;  // last: they use the others
};

}  // namespace percheron
