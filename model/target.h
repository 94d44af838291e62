#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/features.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "model/config.h"
#include "model/rope.h"
#include "model/target_shard.h"
#include "model/weight_format.h"

namespace percheron {

struct TargetFiles;

/// Keys and values of several sequences in one device buffer: slot s holds rows [s * length, (s +
/// 1) * length). A sequence can be cut back by lowering its length; layers with a sliding window
/// keep all rows and mask.
class KvCache {
 public:
  static Result<std::unique_ptr<KvCache>> make(Device& device, const ModelConfig& config,
                                               int64_t slots, int64_t length, DType dtype);
  /// Makes room for `length` tokens a slot, not less than now, and keeps the rows in use. Needs one
  /// layer's memory more for a while. After an error (as make()) the cache can't be used.
  Status grow(Context& context, int64_t length);
  int64_t slots() const { return slots_; }
  int64_t length() const { return length_; }
  TensorView keys(int64_t layer) const;  // [slots * length, kv_heads, head_dim]
  TensorView values(int64_t layer) const;

  std::vector<int64_t> used;  // [slots] rows in use; the caller's to lower when a draft is rejected

 private:
  int64_t slots_ = 0, length_ = 0;
  std::vector<Tensor> keys_, values_;
};

/// Rows to run: tokens packed without padding, and the slot of the cache that each sequence
/// extends.
struct PackedSequences {
  std::vector<int32_t> token_ids;    // [T]
  std::vector<int32_t> offsets;      // [D + 1]
  std::vector<int32_t> cache_slots;  // [D], empty without a cache
};

/// A weight in host memory, f32.
struct HostWeight {
  std::vector<float> values;
  std::vector<int64_t> shape;
};

struct TargetOptions {
  /// Of weights, products and activations. Where the device has no native bf16 it is a storage
  /// type: weights are kept in it, products and activations are f32.
  DType compute_dtype = DType::kBf16;
  WeightFormat weights = WeightFormat::kFull;  // of the decoder layers
  WeightExpansion expansion = WeightExpansion::kEachPass;
  /// j = residual stream after decoder layer j, 0 = embedding; in any order.
  std::vector<int64_t> capture;
  bool capture_last = false;  // also the last layer's output before the final norm, as the last one
  bool head = true;           // load and pack the head (needed for logits and top-1)
  bool layers = true;  // load the decoder layers now; else load_layers() does before forward()
  TargetShard shard;   // of several ranks, each a Target that runs the same passes at the same time
};

/// How far what a target computes is from what it computes with its full weights.
struct WeightsComparison {
  int64_t tokens = 0;
  int64_t same_top1 = -1;       // of the tokens; -1 without a head
  double state_difference = 0;  // |difference| / |full| over all captured states of all tokens, L2
};

/// The frozen target, or a rank's shard of it. Loads a Hugging Face directory; weights are packed
/// once and never change. Not thread-safe: used by its device's worker thread.
class Target {
 public:
  static Result<std::unique_ptr<Target>> load(FileSystem& files, const std::string& directory,
                                              Context& context, const TargetOptions& options);
  /// As above, from files that several ranks share. kInvalidArgument too if the shard's size does
  /// not divide the target's shape.
  static Result<std::unique_ptr<Target>> load(std::shared_ptr<const TargetFiles> files,
                                              Context& context, const TargetOptions& options);
  virtual ~Target() = default;

  virtual const ModelConfig& config() const = 0;
  virtual const TargetOptions& options() const = 0;
  /// Content hash of all weights as stored: part of the run's fingerprint.
  virtual const std::string& weights_hash() const = 0;

  /// What products and activations really are: the options' compute_dtype, or f32 where the device
  /// has no native bf16. A KvCache has this dtype.
  virtual DType compute_dtype() const = 0;
  /// Loads the decoder layers where the options left them out; ok where they are there. On an error
  /// none are there.
  virtual Status load_layers(Context& context) = 0;
  /// Runs the rows, once the layers are loaded; with `cache`, extends the sequences in it.
  /// `captured` receives [T, K, H] in its own dtype (absent: not wanted), K counting the slot of
  /// `capture_last`; `last` [T, H] f32 receives the residual stream before the final norm (absent:
  /// not wanted, and layers after the last captured one are skipped when there is no cache). Waits
  /// for the device. kInvalidArgument names a token outside the vocabulary or a cache slot that is
  /// full; with a cache and dynamic rope, sequences beyond max_position_embeddings are refused.
  /// After an error the cache is as before.
  virtual Status forward(Context& context, const PackedSequences& rows, KvCache* cache,
                         TensorView captured, TensorView last) = 0;
  /// Told, in the course of begin_forward(), that what was put into the stream so far writes slot
  /// `slot` of the captured states whole.
  using SlotWritten = std::function<void(int64_t slot)>;
  /// As forward() without a cache, but does not wait for the device: the pass is in the stream when
  /// this returns. The device may still read `rows` and what is returned: keep both until the pass
  /// is done. `captured` may have any strides; each slot is written as a matrix [T, H].
  virtual Result<std::shared_ptr<const void>> begin_forward(Context& context,
                                                            const PackedSequences& rows,
                                                            TensorView captured, TensorView last,
                                                            const SlotWritten& written) = 0;
  /// Every state of the rows `wanted` of a pass without a cache, in host memory: [R, layers + 1, H]
  /// f32, state j in slot j. Layers that aren't loaded are loaded one at a time and freed again.
  /// Errors as load_layers() and forward().
  virtual Result<std::vector<float>> all_states(Context& context, const PackedSequences& rows,
                                                std::span<const int32_t> wanted) = 0;
  /// Runs the rows with the weights as they are kept and with full ones, of which one layer at a
  /// time is on the device. The layers are loaded. Errors as load_layers() and forward().
  virtual Result<WeightsComparison> compare_weights(Context& context,
                                                    const PackedSequences& rows) = 0;
  /// logits [R, V] f32 of rows of `last` [R, H] (final norm and head applied).
  virtual void logits(Context& context, ConstTensorView last, TensorView logits) = 0;
  /// Greedy next token of each row, in chunks that never hold all logits. out: I32 [R] on the
  /// device.
  virtual void top1(Context& context, ConstTensorView last, TensorView out) = 0;

  /// Frozen tensors that drafters borrow, f32 or bf16 as stored, on the device.
  virtual ConstTensorView embedding() const = 0;   // [V, H]
  virtual ConstTensorView head() const = 0;        // [V, H]; the embedding if tied
  virtual ConstTensorView final_norm() const = 0;  // [H] f32
  /// Weight `name` of decoder layer `layer` ("self_attn.q_proj.weight") as f32 on the host, for
  /// warm starts.
  virtual Result<HostWeight> layer_weight(int64_t layer, const std::string& name) const = 0;
};

/// Whether features hold the target's greedy choices.
enum class Top1 { kNo, kYes };

/// One micro-batch through the target, to host memory. `feature_dtype`: bf16 or f32. With
/// Top1::kYes, top1 is filled where the next token of the same document is supervised, -1
/// elsewhere. kDataLoss names sample and layer of a state that is not finite.
Result<Features> capture_features(Context& context, Target& target, const MicroBatch& batch,
                                  DType feature_dtype, Top1 top1);

/// Fills features.top1 of these documents, ascending, as capture_features() does, but from the last
/// slot, in its precision: for features that were captured without. They have a last slot. Needs
/// the target's head, not its layers.
Status choose_top1(Context& context, Target& target, std::span<const int32_t> documents,
                   Features& features);

}  // namespace percheron
