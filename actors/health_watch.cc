#include "actors/health_watch.h"

#include <chrono>
#include <utility>

namespace percheron {
namespace {

constexpr auto kInterval = std::chrono::seconds(2);

// A device that keeps its load or its power to itself is shown without both.
std::optional<DeviceHealth> known(const std::optional<CardHealth>& health) {
  if (!health || !health->power_watts || !health->utilization) return std::nullopt;
  return DeviceHealth{*health->power_watts, *health->utilization,
                      health->memory_used_bytes.value_or(0), health->memory_bytes.value_or(0)};
}

}  // namespace

HealthWatch::HealthWatch(std::shared_ptr<RunActivity> activity, std::unique_ptr<CardReader> reader,
                         std::vector<std::string> devices)
    : activity_(std::move(activity)),
      reader_(std::move(reader)),
      devices_(std::move(devices)),
      watcher_([this] { watch(); }) {}

HealthWatch::~HealthWatch() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  ended_.notify_all();
  watcher_.join();
}

void HealthWatch::watch() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    lock.unlock();  // The driver may take its time.
    for (const std::string& device : devices_) {
      activity_->health(device, known(reader_->read(device)));
    }
    lock.lock();
    ended_.wait_for(lock, kInterval, [this] { return ending_; });
  }
}

}  // namespace percheron
