#include "kernels/cuda/plugin/event_timer.h"

namespace percheron::cuda {
namespace {

class TimedEvent {
 public:
  explicit TimedEvent(CudaCard& card) : card_(card) {}
  ~TimedEvent() {
    // What it marked has been waited for.
    if (event_ != nullptr) (void)card_.runtime().destroy_event(event_);
  }
  Status record(void* stream) {
    PERCHERON_RETURN_IF_ERROR(
        card_.status(card_.runtime().create_timed_event(&event_), "no event to time by"));
    return card_.status(card_.runtime().record_event(event_, stream), "recording an event");
  }
  void* get() const { return event_; }

 private:
  CudaCard& card_;
  void* event_ = nullptr;
};

}  // namespace

Result<double> EventTimer::time_ms(Queue& queue, const std::function<Status()>& work) {
  Runtime& runtime = card_.runtime();
  TimedEvent begin(card_), end(card_);
  PERCHERON_RETURN_IF_ERROR(begin.record(queue.stream));
  PERCHERON_RETURN_IF_ERROR(work());
  PERCHERON_RETURN_IF_ERROR(end.record(queue.stream));
  PERCHERON_RETURN_IF_ERROR(
      card_.status(runtime.synchronize_event(end.get()), "work that is timed"));
  float ms = 0;
  PERCHERON_RETURN_IF_ERROR(
      card_.status(runtime.elapsed(&ms, begin.get(), end.get()), "the time between two events"));
  return ms;
}

}  // namespace percheron::cuda
