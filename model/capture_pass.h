#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "data/features.h"
#include "kernels/device.h"
#include "model/target.h"

namespace percheron {

/// One micro-batch at a time through the target to host memory, in two halves: the device's thread
/// puts pass and copies into streams and goes on, and another thread waits for them and makes the
/// features. The buffers stay for the next micro-batch. Each captured state is copied as soon as
/// its layer is done, beside the layers after it. On a device in the host's memory nothing is
/// copied: the pass writes the features.
class CapturePass {
 public:
  /// `target` is borrowed.
  CapturePass(Target& target, DType feature_dtype, Top1 top1);
  ~CapturePass();
  CapturePass(const CapturePass&) = delete;
  CapturePass& operator=(const CapturePass&) = delete;

  /// Gets the buffers for micro-batches of so many tokens, if they are smaller. Errors as
  /// Device::allocate() and allocate_host().
  Status reserve(Device& device, int64_t tokens);
  int64_t tokens_reserved() const { return tokens_reserved_; }

  /// On the device's thread, while nothing is under way: puts the pass into the context's stream
  /// and the copies into `copies`, of the same device. Errors as Target::begin_forward().
  Status begin(Context& context, Stream& copies, const MicroBatch& batch);
  /// Waits until the device has run the pass, whatever became of it. Any thread.
  Status wait_pass();
  /// Waits for the copies as well and makes the features, once. Any thread. Errors as
  /// capture_features(), and those of the device.
  Result<Features> finish();

 private:
  // Where the parts of a micro-batch lie in the buffers, in bytes.
  struct Layout {
    size_t ids = 0, last = 0, end = 0;
  };
  Layout layout(int64_t tokens, int64_t rows) const;
  bool checks_last() const { return top1_ == Top1::kYes && !target_.options().capture_last; }
  int64_t slots() const;
  size_t slot_bytes(int64_t tokens) const;
  /// Where the pass writes the captured states.
  TensorView captured();
  Status put_in(Context& context, Stream& copies);
  void choose_top1(Context& context, ConstTensorView last);
  void copy_to_host(Device& device, Stream& copies, size_t offset, size_t bytes);
  Status take_states();
  Status take_top1();
  std::byte* host() { return immediate_ ? in_host_.data() : static_cast<std::byte*>(host_.data()); }

  Target& target_;
  const DType dtype_;
  const Top1 top1_;
  bool immediate_ = false;
  int64_t tokens_reserved_ = 0;
  Buffer device_, host_;            // slot by slot [T, H]; then top-1 ids and the states they
  std::vector<std::byte> in_host_;  // follow from. Where the device is immediate: but the slots
  std::unique_ptr<Event> passed_, copied_;

  bool under_way_ = false;  // the device may use what follows
  PackedSequences rows_;
  std::vector<int32_t> top1_rows_;
  std::shared_ptr<const void> held_;
  Features features_;
};

}  // namespace percheron
