#pragma once

#include <functional>
#include <memory>
#include <string>

#include "actors/work_thread.h"
#include "base/status.h"
#include "kernels/device.h"

namespace percheron {

/// A device with the one thread that issues its work: one stream, one arena, jobs first in, first
/// out. All users of a device share its worker and so take turns; what they keep on the device they
/// make in a job and free before the worker goes.
class DeviceWorker {
 public:
  using Job = std::function<void(Context&)>;

  /// Errors as open_device(). `clock` is borrowed.
  static Result<std::unique_ptr<DeviceWorker>> start(DeviceId id, const DeviceOptions& options,
                                                     const Clock& clock);

  /// Any thread; the job runs on the worker.
  void post(Job job);
  /// Runs `job` on the worker and waits for it: for set-up, never from an actor.
  Status run(const std::function<Status(Context&)>& job);

  /// These as WorkThread's. Nothing runs on the device after stop().
  void stop() { thread_->stop(); }
  void close() { thread_->close(); }
  bool wait_ended(double seconds) { return thread_->wait_ended(seconds); }

  size_t waiting() const { return thread_->waiting(); }  // jobs

  const DeviceInfo& info() const { return device_->info(); }
  std::string name() const { return to_string(device_->info().id); }
  double busy_seconds() const { return thread_->busy_seconds(); }

 private:
  explicit DeviceWorker(std::unique_ptr<Device> device);

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Arena arena_;
  Context context_;
  std::unique_ptr<WorkThread> thread_;  // last: it uses the others
};

}  // namespace percheron
