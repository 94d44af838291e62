#include "actors/request_queue.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"

namespace percheron {

Status RequestQueue::push(GenerationRequest request) {
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() == kWaitingMax) {
      return resource_exhausted(
          fmt::format("{} prompts wait already; send more when answers have come", kWaitingMax));
    }
    waiting_.push_back(std::move(request));
  }
  wake_.notify_all();
  return ok_status();
}

void RequestQueue::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  wake_.notify_all();
}

void RequestQueue::cancel() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = cancelled_ = true;
    waiting_.clear();
  }
  wake_.notify_all();
}

bool RequestQueue::cancelled() const {
  const std::lock_guard lock(mutex_);
  return cancelled_;
}

bool RequestQueue::may_take(size_t device) const {
  size_t needed_by_others = 0;
  for (const size_t others : in_flight_) {
    if (others < in_flight_[device]) needed_by_others += in_flight_[device] - others;
  }
  return waiting_.size() > needed_by_others;
}

std::optional<GenerationRequest> RequestQueue::take(size_t device, GenerationClient::Wait wait) {
  std::unique_lock lock(mutex_);
  if (wait == GenerationClient::Wait::kYes) {
    PERCHERON_CHECK(in_flight_[device] == 0, "a device with work in flight does not wait");
    wake_.wait(lock, [this] { return closed_ || !waiting_.empty(); });
  }
  if (waiting_.empty() || !may_take(device)) return std::nullopt;
  GenerationRequest request = std::move(waiting_.front());
  waiting_.pop_front();
  ++in_flight_[device];
  return request;
}

void RequestQueue::done(size_t device) {
  const std::lock_guard lock(mutex_);
  PERCHERON_CHECK(in_flight_[device] > 0, "only what was taken can be done");
  --in_flight_[device];
}

}  // namespace percheron
