#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "kernels/device_collective.h"
#include "model/parameter.h"

namespace percheron {

/// A trainer's gradients in buckets, in the order in which a backward pass completes them, each
/// with the point in the device's work where it is complete: so the sums over the trainers can be
/// put in while the pass goes on. The order is the same for all trainers, whatever they compute.
///
/// The device's worker says how far a pass is, another thread waits for buckets.
class GradientBuckets final : public GradientListener {
 public:
  /// For the trained ones of `parameters`, which are borrowed; takes device memory for their sums,
  /// as much as the gradients have. A bucket reaches `bucket_bytes` with its last tensor.
  static Result<std::unique_ptr<GradientBuckets>> make(
      Device& device, std::span<const std::unique_ptr<Parameter>> parameters,
      uint64_t bucket_bytes);

  size_t count() const { return buckets_.size(); }
  /// Gradients, and where their sums go.
  std::span<const ReducedTensor> at(size_t bucket) const { return buckets_[bucket]; }
  /// The sums take the gradients' place, in the order of the context's stream.
  void take_sums(Context& context) const;

  // --- who posts jobs to the worker
  /// A job that changes gradients is about to be posted. It is over when the token goes, with the
  /// job or without it having run. Any thread.
  std::shared_ptr<void> announce();

  // --- the worker, in such a job
  void begin_pass();
  /// Where others were announced nobody waits for this pass: only their end completes a bucket.
  bool listens() override;
  void complete(Context& context, const Parameter& parameter) override;
  /// Nothing more is added to any gradient by what follows in `stream`.
  void complete_all(Stream& stream);

  // --- who sums
  /// Lets `stream` wait until the bucket is complete in all that was announced: at once if the last
  /// job of it has come so far, while it still runs. False once the attempt is given up.
  bool wait_for(size_t bucket, int64_t attempt, Stream& stream);
  /// Waits until all that was announced is over. False as above.
  bool wait_all(int64_t attempt);
  /// Waits of attempts before this one end. Any thread; never waits.
  void give_up_before(int64_t attempt);

 private:
  GradientBuckets() = default;
  bool is_ready(size_t bucket) const;

  std::vector<ReducedTensor> tensors_;                   // deepest first
  std::vector<TensorView> gradients_;                    // in the same order
  std::vector<Tensor> sums_;                             // likewise
  std::vector<std::span<const ReducedTensor>> buckets_;  // of tensors_
  std::map<const Parameter*, size_t> bucket_of_;
  std::vector<size_t> sizes_;                   // of each bucket, in tensors
  std::vector<std::unique_ptr<Event>> events_;  // behind the last work on each bucket

  std::mutex mutex_;  // also while an event is recorded or waited for
  std::condition_variable changed_;
  std::vector<size_t> missing_;  // tensors of each bucket, in the running pass
  size_t complete_ = 0;          // buckets from the first on that lack none
  bool in_pass_ = false;
  int announced_ = 0;  // jobs that are not over
  int64_t attempt_ = 0;
};

}  // namespace percheron
