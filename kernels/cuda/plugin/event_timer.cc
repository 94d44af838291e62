#include "kernels/cuda/plugin/event_timer.h"

#include "kernels/cuda/plugin/cuda_status.h"

namespace percheron::cuda {
namespace {

class Event {
 public:
  ~Event() {
    if (event_ != nullptr) (void)cudaEventDestroy(event_);  // What it marked has been waited for.
  }
  Status record(cudaStream_t stream) {
    PERCHERON_RETURN_IF_ERROR(cuda_status(cudaEventCreate(&event_), "cudaEventCreate"));
    return cuda_status(cudaEventRecord(event_, stream), "cudaEventRecord");
  }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

Result<double> EventTimer::time_ms(Queue& queue, const std::function<Status()>& work) {
  const auto stream = static_cast<cudaStream_t>(queue.stream);
  Event begin, end;
  PERCHERON_RETURN_IF_ERROR(begin.record(stream));
  PERCHERON_RETURN_IF_ERROR(work());
  PERCHERON_RETURN_IF_ERROR(end.record(stream));
  PERCHERON_RETURN_IF_ERROR(cuda_status(cudaEventSynchronize(end.get()), "work on the GPU failed"));
  float ms = 0;
  PERCHERON_RETURN_IF_ERROR(
      cuda_status(cudaEventElapsedTime(&ms, begin.get(), end.get()), "cudaEventElapsedTime"));
  return ms;
}

}  // namespace percheron::cuda
