#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/status.h"
#include "data/features.h"
#include "kernels/device.h"

namespace percheron {

/// Brings the hidden states of the next micro-batch to a device while it computes: by way of pinned
/// memory and a stream of their own, into device memory; both are got once. Two micro-batches fit,
/// the one that is about to be read and the one after it; a third takes the place of the older.
/// Features that nobody else has any more are not kept for it.
/// put() and copy_to() may run at the same time, each on one thread.
class StateUpload {
 public:
  /// Whose states are kept on the device at once.
  static constexpr size_t kMicroBatches = 2;

  /// For states of up to `bytes_max` a micro-batch. `device` is borrowed. Errors as
  /// Device::allocate() and allocate_host().
  static Result<std::unique_ptr<StateUpload>> make(Device& device, size_t bytes_max);

  /// Begins to copy the states; waits for the processor's part of it. No effect if they are there,
  /// or are larger. An error is the device's, also of a copy before.
  Status put(const FeaturesPtr& features);
  /// Copies the states to `to`, in the order of `context.stream`, if they were put; waits if put()
  /// is at them. Else false, and nothing is copied. They are there once only.
  bool copy_to(Context& context, const Features& features, TensorView to);

  /// States that copy_to() found, and that it did not.
  int64_t found() const;
  int64_t missed() const;

 private:
  struct Slot {
    Buffer staging, memory;  // of the host, pinned; of the device
    std::unique_ptr<Event> copied, read;
    std::weak_ptr<const Features> features;  // in it, or being put there
    bool filling = false;
    int64_t turn = 0;  // when it was last filled
  };
  explicit StateUpload(Device& device);
  Slot* find(const Features* features);
  Status fill(Slot& slot, const Features& features);

  Device& device_;
  mutable std::mutex mutex_;
  std::condition_variable filled_;
  std::array<Slot, kMicroBatches> slots_;
  int64_t turns_ = 0, found_ = 0, missed_ = 0;
  std::unique_ptr<Stream> stream_;  // last: its end waits for copies out of the slots
};

}  // namespace percheron
