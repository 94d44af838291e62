#include "bench/capture_to_host.h"

#include <future>
#include <memory>
#include <numeric>
#include <utility>

#include "model/capture_pipeline.h"

namespace percheron {
namespace {

constexpr int kPasses = 6;  // of a run: the last one's copies are followed by no pass
constexpr int kRunsMin = 3;

// Features that are made and dropped on a thread of their own, as a target's are.
class Finisher {
 public:
  Status begin(CapturePipeline::Pending pending) {
    PERCHERON_RETURN_IF_ERROR(wait());
    const auto held = std::make_shared<CapturePipeline::Pending>(std::move(pending));
    outcome_ = std::async(std::launch::async, [held] { return held->finish().status(); });
    return ok_status();
  }
  Status wait() { return outcome_.valid() ? outcome_.get() : ok_status(); }

 private:
  std::future<Status> outcome_;
};

Status run_to_host(Context& context, CapturePipeline& captures, const MicroBatch& batch) {
  Finisher finisher;
  for (int i = 0; i < kPasses; ++i) {
    PERCHERON_ASSIGN_OR_RETURN(CapturePipeline::Pending pending, captures.begin(context, batch));
    PERCHERON_RETURN_IF_ERROR(finisher.begin(std::move(pending)));
  }
  return finisher.wait();
}

Status run_on_device(Context& context, Target& target, const PackedSequences& rows,
                     TensorView captured) {
  std::shared_ptr<const void> held[2];
  std::unique_ptr<Event> done[2] = {context.device.make_event(), context.device.make_event()};
  for (int i = 0; i < kPasses; ++i) {
    PERCHERON_RETURN_IF_ERROR(done[i % 2]->wait());
    PERCHERON_ASSIGN_OR_RETURN(held[i % 2], target.begin_forward(context, rows, captured, {}, {}));
    context.stream.record(*done[i % 2]);
  }
  return context.stream.wait_idle();
}

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

}  // namespace

double CaptureToHost::ratio() const {
  return sum(on_device.wall_seconds) / sum(to_host.wall_seconds);
}

Result<CaptureToHost> time_capture_to_host(Context& context, Target& target,
                                           const MicroBatch& batch, double seconds) {
  PackedSequences rows;
  rows.token_ids.assign(batch.token_ids.begin(), batch.token_ids.end());
  rows.offsets = batch.offsets;
  const auto slots = static_cast<int64_t>(target.options().capture.size());
  PERCHERON_ASSIGN_OR_RETURN(
      const Tensor captured,
      context.device.make_tensor(DType::kBf16,
                                 {batch.tokens(), slots, target.config().hidden_size}));
  CapturePipeline captures(target, DType::kBf16, Top1::kNo, batch.tokens());
  const auto to_host = [&] { return run_to_host(context, captures, batch); };
  const auto on_device = [&] { return run_on_device(context, target, rows, captured.view()); };
  PERCHERON_RETURN_IF_ERROR(to_host());
  PERCHERON_RETURN_IF_ERROR(on_device());
  CaptureToHost times{.passes = kPasses, .to_host = {}, .on_device = {}};
  for (int run = 0; run < kRunsMin ||
                    sum(times.to_host.wall_seconds) + sum(times.on_device.wall_seconds) < seconds;
       ++run) {
    PERCHERON_RETURN_IF_ERROR(time_run(on_device, times.on_device));
    PERCHERON_RETURN_IF_ERROR(time_run(to_host, times.to_host));
  }
  return times;
}

}  // namespace percheron
