#include "actors/device_worker.h"

#include <future>
#include <utility>

namespace percheron {

DeviceWorker::DeviceWorker(std::unique_ptr<Device> device)
    : device_(std::move(device)),
      stream_(device_->make_stream()),
      arena_(*device_),
      context_{*device_, *stream_, arena_} {}

Result<std::unique_ptr<DeviceWorker>> DeviceWorker::start(DeviceId id, const DeviceOptions& options,
                                                          const Clock& clock) {
  PERCHERON_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, open_device(id, options));
  std::unique_ptr<DeviceWorker> worker(new DeviceWorker(std::move(device)));
  worker->thread_ = std::make_unique<WorkThread>(to_string(id), clock);
  Device& opened = *worker->device_;
  worker->thread_->post([&opened] { opened.bind_thread(); });
  return worker;
}

void DeviceWorker::post(Job job) {
  thread_->post([this, job = std::move(job)] { job(context_); });
}

Status DeviceWorker::run(const std::function<Status(Context&)>& job) {
  std::promise<Status> outcome;
  post([&](Context& context) { outcome.set_value(job(context)); });
  return outcome.get_future().get();
}

}  // namespace percheron
