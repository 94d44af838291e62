#include "actors/work_thread.h"

#include <pthread.h>

#include <chrono>
#include <utility>

#include "base/check.h"

namespace percheron {

WorkThread::WorkThread(std::string name, const Clock& clock)
    : name_(std::move(name)), clock_(clock), thread_([this] { run(); }) {
  // The kernel keeps 15 characters; a name only helps a reader of `top`.
  (void)pthread_setname_np(thread_.native_handle(), name_.substr(0, 15).c_str());
}

void WorkThread::close() {
  std::deque<std::function<void()>> dropped;
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    dropped.swap(jobs_);
  }
  wake_.notify_all();
}

bool WorkThread::wait_ended(double seconds) {
  std::unique_lock lock(mutex_);
  return job_done_.wait_for(lock, std::chrono::duration<double>(seconds),
                            [this] { return ended_; });
}

void WorkThread::stop() {
  close();
  if (thread_.joinable()) thread_.join();
}

void WorkThread::post(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    if (closing_) return;
    PERCHERON_CHECK(jobs_.size() < kJobsMax, "a work thread's queue grows without bound");
    jobs_.push_back(std::move(job));
    ++posted_;
  }
  wake_.notify_one();
}

size_t WorkThread::waiting() const {
  const std::lock_guard lock(mutex_);
  return jobs_.size();
}

void WorkThread::drain() {
  std::unique_lock lock(mutex_);
  const int64_t last = posted_;
  job_done_.wait(lock, [&] { return finished_ >= last || ended_; });
}

void WorkThread::run() {
  for (;;) {
    std::function<void()> job;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return closing_ || !jobs_.empty(); });
      if (closing_) break;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    const int64_t begin = clock_.monotonic_ns();
    job();
    job = nullptr;  // What it holds goes before the next wait.
    busy_ns_ += clock_.monotonic_ns() - begin;
    {
      const std::lock_guard lock(mutex_);
      ++finished_;
    }
    job_done_.notify_all();
  }
  // Under the lock: who waits may destroy this object as soon as it is let go.
  const std::lock_guard lock(mutex_);
  ended_ = true;
  job_done_.notify_all();
}

}  // namespace percheron
