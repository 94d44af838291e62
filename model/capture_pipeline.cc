#include "model/capture_pipeline.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace percheron {

CapturePipeline::CapturePipeline(Target& target, DType feature_dtype, Top1 top1, int64_t tokens_max)
    : tokens_max_(tokens_max),
      passes_{CapturePass(target, feature_dtype, top1), CapturePass(target, feature_dtype, top1)} {}

Status CapturePipeline::make_room(Device& device, int64_t tokens) {
  if (!copies_) {
    copies_ = device.make_stream();
    tokens_max_ = std::max(tokens_max_, tokens);
    for (CapturePass& pass : passes_) {
      PERCHERON_RETURN_IF_ERROR(pass.reserve(device, tokens_max_));
    }
  }
  return ok_status();
}

size_t CapturePipeline::take() {
  const std::lock_guard lock(mutex_);
  const auto free = std::ranges::find(taken_, false);
  PERCHERON_CHECK(free != taken_.end(), "a target has more captures under way than buffers");
  *free = true;
  return static_cast<size_t>(free - taken_.begin());
}

void CapturePipeline::give_back(size_t index) {
  const std::lock_guard lock(mutex_);
  taken_[index] = false;
}

Result<CapturePipeline::Pending> CapturePipeline::begin(Context& context, const MicroBatch& batch) {
  PERCHERON_RETURN_IF_ERROR(make_room(context.device, batch.tokens()));
  Pending pending(*this, take());
  const int64_t had = pending.pass().tokens_reserved();
  if (batch.tokens() > had) {
    ++growths_;
    log_warning(
        "{}: a micro-batch of {} tokens is larger than the largest that was planned, {}: buffers "
        "of captured states grow",
        to_string(context.device.info().id), batch.tokens(), had);
  }
  PERCHERON_RETURN_IF_ERROR(pending.pass().begin(context, *copies_, batch));
  return pending;
}

Result<Features> CapturePipeline::Pending::capture(Context& context, const MicroBatch& batch) {
  PERCHERON_RETURN_IF_ERROR(pass().begin(context, *pipeline_->copies_, batch));
  return pass().finish();
}

}  // namespace percheron
