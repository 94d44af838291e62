#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "base/status.h"
#include "data/features.h"
#include "kernels/device.h"
#include "model/capture_pass.h"

namespace percheron {

/// Captures of one target of which two may be under way: while the copies of one are made and
/// looked at, the device runs the next. begin() and captures themselves are the device's thread's,
/// the rest is any thread's.
class CapturePipeline {
 public:
  static constexpr size_t kPassesMax = 2;

  /// One that has begun. Goes before the pipeline.
  class Pending {
   public:
    Pending(Pending&& other) noexcept
        : pipeline_(std::exchange(other.pipeline_, nullptr)), index_(other.index_) {}
    Pending& operator=(Pending&&) = delete;
    /// Gives its buffers to the next, whether it was finished or not.
    ~Pending() {
      if (pipeline_ != nullptr) pipeline_->give_back(index_);
    }

    /// As CapturePass does.
    Status wait_pass() { return pass().wait_pass(); }
    Result<Features> finish() { return pass().finish(); }
    /// On the device's thread, once it is finished: another micro-batch, from the beginning to the
    /// end, in the same buffers.
    Result<Features> capture(Context& context, const MicroBatch& batch);

   private:
    friend class CapturePipeline;
    Pending(CapturePipeline& pipeline, size_t index) : pipeline_(&pipeline), index_(index) {}
    CapturePass& pass() { return pipeline_->passes_[index_]; }

    CapturePipeline* pipeline_;
    size_t index_;
  };

  /// `target` is borrowed. `tokens_max`: of the micro-batches to come; buffers are made for as many
  /// when the first begins. A larger one makes them grow, which is said and counted.
  CapturePipeline(Target& target, DType feature_dtype, Top1 top1, int64_t tokens_max);

  /// While fewer than kPassesMax are under way. Errors as CapturePass::begin().
  Result<Pending> begin(Context& context, const MicroBatch& batch);

  /// How often buffers were made larger, the first time not counted.
  int64_t growths() const { return growths_; }

 private:
  Status make_room(Device& device, int64_t tokens);
  size_t take();
  void give_back(size_t index);

  int64_t tokens_max_;
  int64_t growths_ = 0;
  std::unique_ptr<Stream> copies_;
  std::array<CapturePass, kPassesMax> passes_;
  std::mutex mutex_;
  std::array<bool, kPassesMax> taken_{};  // guarded by mutex_
};

}  // namespace percheron
