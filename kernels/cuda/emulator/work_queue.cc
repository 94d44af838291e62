#include "kernels/cuda/emulator/work_queue.h"

#include <algorithm>
#include <cstring>

namespace percheron::emulator {
namespace {

constexpr int kPoison = 0xff;

}  // namespace

std::shared_ptr<WorkQueue> Timeline::make_queue() {
  const std::lock_guard lock(mutex_);
  std::erase_if(queues_, [](const std::weak_ptr<WorkQueue>& queue) { return queue.expired(); });
  auto queue = std::make_shared<WorkQueue>(*this);
  queues_.push_back(queue);
  return queue;
}

void Timeline::finish_all() {
  const std::lock_guard lock(mutex_);
  const DeviceMemory::Access access(memory_);
  for (const std::weak_ptr<WorkQueue>& each : queues_) {
    if (const std::shared_ptr<WorkQueue> queue = each.lock()) queue->run_until(queue->added_);
  }
}

void Timeline::refuse_recordings(const std::string& what) {
  const std::lock_guard lock(mutex_);
  for (const std::weak_ptr<WorkQueue>& each : queues_) {
    const std::shared_ptr<WorkQueue> queue = each.lock();
    if (queue == nullptr || !queue->recorder_) continue;
    if (queue->recorder_->thread == std::this_thread::get_id()) queue->refuse(what);
  }
}

void WorkQueue::add(std::function<Status()> work) {
  const std::lock_guard lock(timeline_.mutex_);
  add_locked({.run = std::move(work)});
}

void WorkQueue::add_locked(Work work) {
  if (recorder_) {
    recorder_->work.push_back(std::move(work.run));
    return;
  }
  work_.push_back(std::move(work));
  ++added_;
  if (work_.size() < kWorkMax) return;
  const DeviceMemory::Access access(timeline_.memory_);
  run_until(added_);
}

void WorkQueue::launch(const LaunchShape& shape, std::function<void()> kernel) {
  add([this, shape, kernel = std::move(kernel)] { return timeline_.machine_.run(shape, kernel); });
}

bool Timeline::reads_host(const char* begin, const char* end) const {
  return std::any_of(queues_.begin(), queues_.end(), [&](const std::weak_ptr<WorkQueue>& each) {
    const std::shared_ptr<WorkQueue> queue = each.lock();
    return queue != nullptr &&
           std::any_of(queue->work_.begin(), queue->work_.end(), [&](const WorkQueue::Work& work) {
             return work.host_source.first < end && begin < work.host_source.second;
           });
  });
}

void WorkQueue::copy(void* destination, const void* source, size_t bytes) {
  char* to = static_cast<char*>(destination);
  const char* from = static_cast<const char*>(source);
  const std::lock_guard lock(timeline_.mutex_);
  const DeviceMemory& memory = timeline_.memory_;
  if (recorder_ && (!memory.contains(to, bytes) || !memory.contains(from, bytes))) {
    return refuse("a copy from or to host memory, which may not be there when it runs");
  }
  // Not where earlier work still reads: that is in order and allowed.
  if (!memory.contains(to, bytes) && !timeline_.reads_host(to, to + bytes)) {
    std::memset(to, kPoison, bytes);
  }
  Work work;
  if (!memory.contains(from, bytes)) work.host_source = {from, from + bytes};
  work.run = [to, from, bytes] {
    std::memmove(to, from, bytes);
    return ok_status();
  };
  add_locked(std::move(work));
}

QueuePoint WorkQueue::point() {
  const std::lock_guard lock(timeline_.mutex_);
  refuse("a point for others to wait for");
  return {shared_from_this(), added_};
}

void WorkQueue::wait_for(QueuePoint point) {
  if (point.queue == nullptr) return;
  {
    const std::lock_guard lock(timeline_.mutex_);
    refuse("a wait for another stream");
  }
  add([point = std::move(point)] {
    point.queue->run_until(point.after);
    return ok_status();
  });
}

Status WorkQueue::finish() {
  const std::lock_guard lock(timeline_.mutex_);
  const DeviceMemory::Access access(timeline_.memory_);
  refuse("a wait for the stream");
  run_until(added_);
  return std::exchange(error_, ok_status());
}

Status WorkQueue::finish(const QueuePoint& point) {
  if (point.queue == nullptr) return ok_status();
  Timeline& timeline = point.queue->timeline_;
  const std::lock_guard lock(timeline.mutex_);
  const DeviceMemory::Access access(timeline.memory_);
  point.queue->run_until(point.after);
  return point.queue->error_;
}

Status WorkQueue::begin_recording() {
  const std::lock_guard lock(timeline_.mutex_);
  if (recorder_) return failed_precondition("a stream makes one recording at a time");
  recorder_ = Recorder{{}, std::this_thread::get_id(), ""};
  return ok_status();
}

Result<std::shared_ptr<const WorkQueue::Recording>> WorkQueue::end_recording() {
  const std::lock_guard lock(timeline_.mutex_);
  if (!recorder_) return failed_precondition("no recording was begun");
  const Recorder recorder = std::move(*recorder_);
  recorder_.reset();
  if (!recorder.refused.empty()) {
    return failed_precondition(recorder.refused + " can't be recorded");
  }
  return std::make_shared<const Recording>(recorder.work);
}

void WorkQueue::replay(std::shared_ptr<const Recording> recording) {
  add([recording = std::move(recording)] {
    for (const std::function<Status()>& run : *recording) PERCHERON_RETURN_IF_ERROR(run());
    return ok_status();
  });
}

void WorkQueue::run_until(uint64_t after) {
  while (done_ < after) {
    const Work work = std::move(work_.front());
    work_.pop_front();
    ++done_;
    if (!error_.ok()) continue;
    error_ = work.run();
  }
}

}  // namespace percheron::emulator
