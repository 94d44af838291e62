#include "actors/service/heartbeat.h"

#include <chrono>
#include <utility>

namespace percheron {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(500);

}  // namespace

Heartbeat::~Heartbeat() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Heartbeat::run() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    if (link_.turn().moves()) {
      proto::Frame frame;
      frame.mutable_alive();
      link_.send(std::move(frame));
    }
    wake_.wait_for(lock, kInterval, [this] { return ending_; });
  }
}

}  // namespace percheron
