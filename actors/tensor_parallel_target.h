#pragma once

#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "actors/device_worker.h"
#include "kernels/device_collective.h"
#include "model/target.h"
#include "model/target_files.h"

namespace percheron {

/// A target that several devices hold together (placement.tensor_parallel). Used like any other
/// target by the worker of the first device, rank 0; the other ranks' workers run their shards at
/// the same time, and all that a caller sees lies on rank 0. A rank that fails ends the pass of all
/// with its error; the group can't be used after that.
class TensorParallelTarget final : public Target {
 public:
  struct Rank {
    DeviceWorker* worker = nullptr;  // borrowed
    std::unique_ptr<DeviceCollective> collective;
    std::unique_ptr<Target> target;  // made with the collective
  };

  /// Loads all ranks at once, each on its worker; called by none of them. `options` but for the
  /// shard; the head is loaded by rank 0 and by the ranks on `head_devices`. Errors as
  /// make_device_collectives() and Target::load(), naming the rank.
  static Result<std::unique_ptr<TensorParallelTarget>> load(
      std::shared_ptr<const TargetFiles> files, std::span<DeviceWorker* const> workers,
      const TargetOptions& options, const std::set<DeviceId>& head_devices);

  explicit TensorParallelTarget(std::vector<Rank> ranks) : ranks_(std::move(ranks)) {}

  int size() const { return static_cast<int>(ranks_.size()); }
  const Target& rank(int rank) const { return *ranks_[static_cast<size_t>(rank)].target; }

  const ModelConfig& config() const override { return first().config(); }
  const TargetOptions& options() const override { return first().options(); }
  const std::string& weights_hash() const override { return first().weights_hash(); }
  DType compute_dtype() const override { return first().compute_dtype(); }
  Status load_layers(Context& context) override;
  /// kInvalidArgument with a cache: generation needs a target on one device.
  Status forward(Context& context, const PackedSequences& rows, KvCache* cache, TensorView captured,
                 TensorView last) override;
  /// The ranks' passes are done when it returns: a rank that fails meanwhile must end the waits of
  /// all, which an event of one of them can't tell. Only what `written` puts into other streams
  /// goes on.
  Result<std::shared_ptr<const void>> begin_forward(Context& context, const PackedSequences& rows,
                                                    TensorView captured, TensorView last,
                                                    const SlotWritten& written) override;
  Result<std::vector<float>> all_states(Context& context, const PackedSequences& rows,
                                        std::span<const int32_t> wanted) override;
  Result<WeightsComparison> compare_weights(Context& context, const PackedSequences& rows) override;
  void logits(Context& context, ConstTensorView last, TensorView logits) override;
  void top1(Context& context, ConstTensorView last, TensorView out) override;
  ConstTensorView embedding() const override { return first().embedding(); }
  ConstTensorView head() const override { return first().head(); }
  ConstTensorView final_norm() const override { return first().final_norm(); }
  Result<HostWeight> layer_weight(int64_t layer, const std::string& name) const override {
    return first().layer_weight(layer, name);
  }

 private:
  using Work = std::function<Status(size_t rank, Context& context)>;

  const Target& first() const { return *ranks_.front().target; }
  /// Runs `work` on every rank at the same time, rank 0's with `own` on the calling thread.
  Status on_all(Context& own, const Work& work);
  /// A pass of all ranks, rank 0's by `first`.
  Status run_pass(Context& context, const PackedSequences& rows, bool with_last,
                  const std::function<Status(Target& target, Context& context)>& first);

  std::vector<Rank> ranks_;
};

}  // namespace percheron
