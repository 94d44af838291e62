#include "model/transformer_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/device_collective.h"
#include "model/parameter_list.h"

namespace percheron {
namespace {

// Rows of an MLP that are computed together, so that gate and up stay in a cache.
constexpr int64_t kMlpRows = 512;

// Copies a tensor of a mapped file to the device, unchanged; valid until the arena's scope ends.
TensorView stage(Context& context, const ConstTensorView& stored) {
  const int64_t columns = stored.dim(-1);
  TensorView staged = context.arena.take(stored.dtype(), {stored.elements() / columns, columns});
  context.device.copy_bytes(context.stream, staged.data(), stored.data(), stored.bytes());
  return staged;
}

// A rank's shares of stored tensors, and the host memory of those that had to be gathered.
struct Shares {
  Shares(const WeightFiles& weights, std::span<const std::string> names, Split split,
         const TargetShard& shard)
      : gathered(names.size()) {
    for (size_t i = 0; i < names.size(); ++i) {
      views.push_back(share_of(weights.view(names[i]), split, shard, gathered[i]));
    }
  }
  Shares(const Shares&) = delete;
  Shares& operator=(const Shares&) = delete;

  // The dtype that holds all of them exactly.
  DType dtype() const {
    for (const ConstTensorView& view : views) {
      if (view.dtype() != views[0].dtype()) return DType::kF32;
    }
    return views[0].dtype();
  }
  int64_t extent(int dimension) const {
    int64_t sum = 0;
    for (const ConstTensorView& view : views) sum += view.dim(dimension);
    return sum;
  }

  std::vector<std::vector<std::byte>> gathered;
  std::vector<ConstTensorView> views;
};

}  // namespace

Result<Tensor> load_stacked_f32(Context& context, const WeightFiles& weights,
                                std::span<const std::string> names, Split split,
                                const TargetShard& shard) {
  if (names.empty()) return Tensor();
  const Shares shares(weights, names, split, shard);
  PERCHERON_ASSIGN_OR_RETURN(Tensor stacked,
                             context.device.make_tensor(DType::kF32, {shares.extent(0)}));
  int64_t begin = 0;
  for (const ConstTensorView& stored : shares.views) {
    Arena::Scope scope(context.arena);
    const int64_t end = begin + stored.elements();
    context.device.ops().copy(context, stage(context, stored).reshaped({stored.elements()}),
                              stacked.view().rows(begin, end));
    begin = end;
  }
  return stacked;
}

Result<std::unique_ptr<PackedMatrix>> load_packed(Context& context, const WeightFiles& weights,
                                                  std::span<const std::string> names, DType dtype,
                                                  Split split, const TargetShard& shard) {
  const Ops& ops = context.device.ops();
  Arena::Scope scope(context.arena);
  const Shares shares(weights, names, split, shard);
  const int64_t in_features = shares.views[0].dim(1), out_features = shares.extent(0);
  TensorView stacked;
  if (names.size() == 1) {
    stacked = stage(context, shares.views[0]);
  } else {
    stacked = context.arena.take(shares.dtype(), {out_features, in_features});
    int64_t begin = 0;
    for (const ConstTensorView& stored : shares.views) {
      const TensorView rows = stacked.rows(begin, begin + stored.dim(0));
      if (stored.dtype() == stacked.dtype()) {
        context.device.copy_bytes(context.stream, rows.data(), stored.data(), stored.bytes());
      } else {
        ops.copy(context, stage(context, stored), rows);
      }
      begin += stored.dim(0);
    }
  }
  std::unique_ptr<PackedMatrix> packed =
      ops.make_packed(context, out_features, in_features, dtype, MatrixUse::kForward);
  ops.pack(context, stacked, *packed);
  // Device memory that is full shows here, with the tensor's name; and gathered shares go now.
  PERCHERON_RETURN_IF_ERROR(context.stream.wait_idle().with_context("loading " + names[0]));
  return packed;
}

Result<TransformerLayer> TransformerLayer::load(Context& context, const ModelConfig& config,
                                                int64_t index, const WeightFiles& weights,
                                                DType compute_dtype, const TargetShard& shard) {
  TransformerLayer layer;
  layer.shard_ = shard;
  layer.index_ = index;
  layer.heads_ = config.num_attention_heads / shard.size;
  layer.kv_heads_ = config.num_key_value_heads / shard.size;
  layer.head_dim_ = config.head_dim;
  layer.intermediate_size_ = config.intermediate_size / shard.size;
  layer.epsilon_ = static_cast<float>(config.rms_norm_eps);
  layer.compute_dtype_ = activation_dtype(context.device, compute_dtype);

  using Names = std::vector<std::string>;
  const std::string prefix = fmt::format("layers.{}.", index);
  const auto named = [&](std::initializer_list<std::string_view> names, std::string_view suffix) {
    Names result;
    for (const std::string_view name : names) {
      result.push_back(fmt::format("{}{}.{}", prefix, name, suffix));
    }
    return result;
  };
  const auto load_norm = [&](bool wanted, std::string_view name, Tensor& tensor) -> Status {
    if (!wanted) return ok_status();
    PERCHERON_ASSIGN_OR_RETURN(tensor, load_stacked_f32(context, weights, named({name}, "weight")));
    return ok_status();
  };
  const auto load_linear = [&](std::initializer_list<std::string_view> names, bool has_bias,
                               Split split, std::unique_ptr<PackedMatrix>& matrix,
                               Tensor& bias) -> Status {
    PERCHERON_ASSIGN_OR_RETURN(
        matrix, load_packed(context, weights, named(names, "weight"), compute_dtype, split, shard));
    // A sum's bias is added once.
    if (!has_bias || (split == Split::kInputs && shard.rank > 0)) return ok_status();
    const Split bias_split = split == Split::kInputs ? Split::kNone : split;
    PERCHERON_ASSIGN_OR_RETURN(
        bias, load_stacked_f32(context, weights, named(names, "bias"), bias_split, shard));
    return ok_status();
  };
  PERCHERON_RETURN_IF_ERROR(load_norm(true, "input_layernorm", layer.input_norm_));
  PERCHERON_RETURN_IF_ERROR(
      load_norm(true, "post_attention_layernorm", layer.post_attention_norm_));
  PERCHERON_RETURN_IF_ERROR(load_norm(config.qk_norm, "self_attn.q_norm", layer.q_norm_));
  PERCHERON_RETURN_IF_ERROR(load_norm(config.qk_norm, "self_attn.k_norm", layer.k_norm_));
  PERCHERON_RETURN_IF_ERROR(
      load_linear({"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, config.qkv_bias,
                  Split::kOutputs, layer.qkv_, layer.qkv_bias_));
  PERCHERON_RETURN_IF_ERROR(
      load_linear({"self_attn.o_proj"}, config.o_bias, Split::kInputs, layer.o_, layer.o_bias_));
  PERCHERON_RETURN_IF_ERROR(load_linear({"mlp.gate_proj", "mlp.up_proj"}, config.mlp_bias,
                                        Split::kOutputs, layer.gate_up_, layer.gate_up_bias_));
  PERCHERON_RETURN_IF_ERROR(load_linear({"mlp.down_proj"}, config.mlp_bias, Split::kInputs,
                                        layer.down_, layer.down_bias_));
  return layer;
}

void TransformerLayer::forward(Context& context, const LayerRows& rows, TensorView x) const {
  attend(context, rows, x);
  feed_forward(context, x);
}

void TransformerLayer::attend(Context& context, const LayerRows& rows, TensorView x) const {
  const Ops& ops = context.device.ops();
  Arena::Scope scope(context.arena);
  const int64_t count = x.dim(0), hidden = x.dim(1);
  const int64_t query = heads_ * head_dim_, key = kv_heads_ * head_dim_;

  const TensorView qkv = context.arena.take(compute_dtype_, {count, query + 2 * key});
  {
    Arena::Scope norm_scope(context.arena);
    const TensorView normed = context.arena.take(compute_dtype_, {count, hidden});
    ops.rms_norm(context, x, input_norm_, epsilon_, normed, {});
    ops.linear(context, normed, *qkv_, qkv_bias_, Write::kOverwrite, qkv);
  }
  const TensorView q = qkv.columns(0, query).heads(head_dim_);
  const TensorView k = qkv.columns(query, query + key).heads(head_dim_);
  const TensorView v = qkv.columns(query + key, query + 2 * key).heads(head_dim_);
  if (q_norm_.present()) {
    ops.rms_norm(context, q, q_norm_, epsilon_, q, {});
    ops.rms_norm(context, k, k_norm_, epsilon_, k, {});
  }
  ops.rotary(context, q, rows.rope_rows, rows.cos, rows.sin, RotaryDirection::kForward);
  ops.rotary(context, k, rows.rope_rows, rows.cos, rows.sin, RotaryDirection::kForward);

  ConstTensorView keys = k, values = v;
  if (rows.cache != nullptr) {
    const TensorView cached_keys = rows.cache->keys(index_);
    const TensorView cached_values = rows.cache->values(index_);
    const TensorView key_rows = cached_keys.reshaped({cached_keys.dim(0), key});
    const TensorView value_rows = cached_values.reshaped({cached_values.dim(0), key});
    for (const CacheRun& run : rows.cache_runs) {
      const TensorView fresh = qkv.rows(run.first_row, run.first_row + run.rows);
      const int64_t end = run.cache_row + run.rows;
      ops.copy(context, fresh.columns(query, query + key), key_rows.rows(run.cache_row, end));
      ops.copy(context, fresh.columns(query + key, query + 2 * key),
               value_rows.rows(run.cache_row, end));
    }
    keys = cached_keys;
    values = cached_values;
  }
  const TensorView attended = context.arena.take(compute_dtype_, {count, query});
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim_));
  const TensorView out = attended.heads(head_dim_);
  if (rows.documents) {
    ops.causal_attention(context, q, k, v, *rows.documents, rows.intervals, scale, out);
  } else {
    ops.attention(context, q, keys, values, rows.intervals, scale, out, {});
  }
  add_parts(context, x, [&](TensorView part) {
    ops.linear(context, attended, *o_, o_bias_, Write::kAdd, part);
  });
}

void TransformerLayer::feed_forward(Context& context, TensorView x) const {
  const Ops& ops = context.device.ops();
  add_parts(context, x, [&](TensorView sum) {
    for (int64_t begin = 0; begin < x.dim(0); begin += kMlpRows) {
      Arena::Scope scope(context.arena);
      const int64_t end = std::min(x.dim(0), begin + kMlpRows), count = end - begin;
      const TensorView normed = context.arena.take(compute_dtype_, {count, x.dim(1)});
      const TensorView gate_up =
          context.arena.take(compute_dtype_, {count, 2 * intermediate_size_});
      const TensorView activated = context.arena.take(compute_dtype_, {count, intermediate_size_});
      ops.rms_norm(context, x.rows(begin, end), post_attention_norm_, epsilon_, normed, {});
      ops.linear(context, normed, *gate_up_, gate_up_bias_, Write::kOverwrite, gate_up);
      ops.swiglu(context, gate_up, activated);
      ops.linear(context, activated, *down_, down_bias_, Write::kAdd, sum.rows(begin, end));
    }
  });
}

void TransformerLayer::add_parts(Context& context, TensorView x,
                                 const std::function<void(TensorView)>& add) const {
  if (shard_.size == 1) return add(x);
  const Ops& ops = context.device.ops();
  Arena::Scope scope(context.arena);
  const TensorView sum = context.arena.take(DType::kF32, {x.dim(0), x.dim(1)});
  ops.fill_zero(context, sum);
  add(sum);
  shard_.collective->all_reduce_sum(context.stream, sum);
  ops.add(context, sum, x);
}

}  // namespace percheron
