#include "actors/gradient_buckets.h"

#include <algorithm>
#include <ranges>
#include <utility>

#include "actors/gradient_reduction.h"

namespace percheron {

Result<std::unique_ptr<GradientBuckets>> GradientBuckets::make(
    Device& device, std::span<const std::unique_ptr<Parameter>> parameters, uint64_t bucket_bytes) {
  std::unique_ptr<GradientBuckets> made(new GradientBuckets());
  std::vector<const Parameter*> order;
  // Checkpoints list parameters from the input on, a backward pass comes from the output.
  for (const auto& parameter : std::views::reverse(parameters)) {
    if (!parameter->trainable) continue;
    const TensorView gradient = parameter->gradient.view();
    PERCHERON_ASSIGN_OR_RETURN(Tensor sum, device.make_tensor(DType::kF32, gradient.shape()));
    made->tensors_.push_back({gradient, sum});
    made->gradients_.push_back(gradient);
    made->sums_.push_back(std::move(sum));
    order.push_back(parameter.get());
  }
  made->buckets_ = make_gradient_buckets(made->tensors_, bucket_bytes);
  size_t next = 0;
  for (size_t bucket = 0; bucket < made->buckets_.size(); ++bucket) {
    made->sizes_.push_back(made->buckets_[bucket].size());
    for (size_t i = 0; i < made->sizes_[bucket]; ++i) made->bucket_of_[order[next++]] = bucket;
    made->events_.push_back(device.make_event());
  }
  made->missing_.assign(made->sizes_.size(), 0);
  made->complete_ = made->sizes_.size();
  return made;
}

void GradientBuckets::take_sums(Context& context) const {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const TensorView sum = tensors_[i].sum;
    context.device.copy_bytes(context.stream, gradients_[i].data(), sum.data(), sum.bytes());
  }
}

std::shared_ptr<void> GradientBuckets::announce() {
  {
    const std::lock_guard lock(mutex_);
    ++announced_;
  }
  return {nullptr, [this](void*) {
            const std::lock_guard lock(mutex_);
            --announced_;
            changed_.notify_all();
          }};
}

void GradientBuckets::begin_pass() {
  const std::lock_guard lock(mutex_);
  in_pass_ = true;
  complete_ = 0;
  missing_ = sizes_;
}

bool GradientBuckets::listens() {
  const std::lock_guard lock(mutex_);
  return announced_ <= 1;
}

void GradientBuckets::complete(Context& context, const Parameter& parameter) {
  const size_t bucket = bucket_of_.at(&parameter);
  const std::lock_guard lock(mutex_);
  PERCHERON_CHECK(in_pass_ && missing_[bucket] > 0, "a gradient is complete once in a pass");
  if (--missing_[bucket] > 0) return;
  context.stream.record(*events_[bucket]);
  while (complete_ < missing_.size() && missing_[complete_] == 0) ++complete_;
  changed_.notify_all();
}

void GradientBuckets::complete_all(Stream& stream) {
  const std::lock_guard lock(mutex_);
  for (const auto& event : events_) stream.record(*event);
  in_pass_ = false;
  complete_ = events_.size();
  changed_.notify_all();
}

bool GradientBuckets::is_ready(size_t bucket) const {
  // The one that is left is the pass that runs, and nothing comes behind it.
  return announced_ == 0 || (announced_ == 1 && in_pass_ && bucket < complete_);
}

bool GradientBuckets::wait_for(size_t bucket, int64_t attempt, Stream& stream) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return attempt < attempt_ || is_ready(bucket); });
  if (attempt < attempt_) return false;
  stream.wait_for(*events_[bucket]);
  return true;
}

bool GradientBuckets::wait_all(int64_t attempt) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return attempt < attempt_ || announced_ == 0; });
  return attempt >= attempt_;
}

void GradientBuckets::give_up_before(int64_t attempt) {
  const std::lock_guard lock(mutex_);
  attempt_ = std::max(attempt_, attempt);
  changed_.notify_all();
}

}  // namespace percheron
