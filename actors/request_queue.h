#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

#include "base/status.h"
#include "model/generation.h"

namespace percheron {

/// Prompts that wait for a free slot of any of several devices, first in, first out. Thread-safe.
class RequestQueue {
 public:
  /// Requests that may wait at once. Who feeds the queue waits for answers long before.
  static constexpr size_t kWaitingMax = size_t{1} << 20;

  explicit RequestQueue(size_t devices) : in_flight_(devices, 0) {}

  /// kResourceExhausted beyond kWaitingMax.
  Status push(GenerationRequest request);
  /// No more requests will come.
  void close();
  /// Drops what waits; takers get nothing any more.
  void cancel();
  bool cancelled() const;

  /// The next request for `device`, which has it in flight until done(). None with Wait::kNo if
  /// there is none, or if those that wait are needed to bring the other devices to as many in
  /// flight: a device that comes first must not take all of a short queue. With Wait::kYes, for a
  /// device with nothing in flight, waits; none then means that there will be none any more.
  std::optional<GenerationRequest> take(size_t device, GenerationClient::Wait wait);
  void done(size_t device);

 private:
  bool may_take(size_t device) const;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<GenerationRequest> waiting_;
  std::vector<size_t> in_flight_;  // by device
  bool closed_ = false, cancelled_ = false;
};

}  // namespace percheron
