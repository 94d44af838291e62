#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "kernels/ops.h"
#include "model/config.h"
#include "model/frozen_matrix.h"
#include "model/target.h"
#include "model/target_shard.h"
#include "model/weights.h"

namespace percheron {

/// Rows of one sequence that go to neighbouring rows of a cache's buffers.
struct CacheRun {
  int64_t first_row = 0, rows = 0, cache_row = 0;
};

/// Room for the matrices of one layer in the type of their products, where they are kept in 8 bits:
/// one layer after the other uses it.
struct ExpandedMatrices {
  std::unique_ptr<PackedMatrix> qkv, o, gate_up, down;
};

/// What every layer of one forward pass shares: device views of T packed rows.
struct LayerRows {
  ConstTensorView rope_rows;  // I32 [T], rows of cos and sin
  ConstTensorView cos, sin;   // [P, head_dim / 2] f32
  ConstTensorView intervals;  // I32 [T, 4], the keys that each row sees in this layer
  std::optional<PackedDocuments> documents;  // where intervals are causal within these, no cache
  KvCache* cache = nullptr;                  // keys and values come from here when there is one
  std::span<const CacheRun> cache_runs;
  const ExpandedMatrices* expanded = nullptr;  // there where weights are of 8 bits
};

/// One frozen pre-norm decoder layer (llama, qwen2, qwen3, mistral), its weights packed once.
class TransformerLayer {
 public:
  /// Packs the shard's part of layer `index` as options.compute_dtype, which activations have too
  /// if the device multiplies it, or keeps it in 8 bits. `weights` must have passed check(),
  /// `config` check_tensor_parallel().
  static Result<TransformerLayer> load(Context& context, const ModelConfig& config, int64_t index,
                                       const WeightFiles& weights, const TargetOptions& options);
  /// Room for any layer of this configuration and the options' shard. Without the memory the stream
  /// keeps kResourceExhausted.
  static ExpandedMatrices make_room(Context& context, const ModelConfig& config,
                                    const TargetOptions& options);

  /// Adds the layer's attention and MLP to the residual stream x [T, H] f32, which is the same on
  /// every rank.
  void forward(Context& context, const LayerRows& rows, TensorView x) const;

 private:
  void attend(Context& context, const LayerRows& rows, TensorView x) const;
  void feed_forward(Context& context, const ExpandedMatrices* expanded, TensorView x) const;
  /// Runs `add`, which is to add this rank's part to a [T, H] f32: x itself where there is one
  /// rank, else zeros that are then summed over the ranks and added to x.
  void add_parts(Context& context, TensorView x, const std::function<void(TensorView)>& add) const;

  TargetShard shard_;
  int64_t index_ = 0;
  // Of this rank.
  int64_t heads_ = 0, kv_heads_ = 0, head_dim_ = 0, intermediate_size_ = 0;
  float epsilon_ = 0;
  DType compute_dtype_ = DType::kF32;
  Tensor input_norm_, post_attention_norm_, q_norm_, k_norm_;  // f32; the latter two only in qwen3
  Tensor qkv_bias_, o_bias_, gate_up_bias_, down_bias_;        // f32, or absent
  FrozenMatrix qkv_, o_, gate_up_, down_;
};

}  // namespace percheron
