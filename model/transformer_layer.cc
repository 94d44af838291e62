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

}  // namespace

Result<TransformerLayer> TransformerLayer::load(Context& context, const ModelConfig& config,
                                                int64_t index, const WeightFiles& weights,
                                                const TargetOptions& options) {
  const TargetShard& shard = options.shard;
  TransformerLayer layer;
  layer.shard_ = shard;
  layer.index_ = index;
  layer.heads_ = config.num_attention_heads / shard.size;
  layer.kv_heads_ = config.num_key_value_heads / shard.size;
  layer.head_dim_ = config.head_dim;
  layer.intermediate_size_ = config.intermediate_size / shard.size;
  layer.epsilon_ = static_cast<float>(config.rms_norm_eps);
  layer.compute_dtype_ = activation_dtype(context.device, options.compute_dtype);

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
                               Split split, FrozenMatrix& matrix, Tensor& bias) -> Status {
    PERCHERON_ASSIGN_OR_RETURN(
        matrix, load_frozen(context, weights, named(names, "weight"), options, split));
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

ExpandedMatrices TransformerLayer::make_room(Context& context, const ModelConfig& config,
                                             const TargetOptions& options) {
  const TargetShard& shard = options.shard;
  const int64_t hidden = config.hidden_size, width = config.intermediate_size / shard.size;
  const int64_t query = config.num_attention_heads / shard.size * config.head_dim;
  const int64_t key = config.num_key_value_heads / shard.size * config.head_dim;
  const auto room = [&](int64_t out, int64_t in) {
    return context.device.ops().make_packed(context, out, in, options.compute_dtype,
                                            MatrixUse::kForward);
  };
  return {.qkv = room(query + 2 * key, hidden),
          .o = room(hidden, query),
          .gate_up = room(2 * width, hidden),
          .down = room(hidden, width)};
}

void TransformerLayer::forward(Context& context, const LayerRows& rows, TensorView x) const {
  attend(context, rows, x);
  feed_forward(context, rows.expanded, x);
}

namespace {

// A matrix of a layer, expanded where it is kept in 8 bits.
const PackedMatrix& ready(Context& context, const FrozenMatrix& matrix,
                          const ExpandedMatrices* expanded,
                          std::unique_ptr<PackedMatrix> ExpandedMatrices::*room) {
  return matrix.ready(context, expanded == nullptr ? nullptr : (expanded->*room).get());
}

}  // namespace

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
    const PackedMatrix& weight = ready(context, qkv_, rows.expanded, &ExpandedMatrices::qkv);
    ops.linear(context, normed, weight, qkv_bias_, Write::kOverwrite, qkv);
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
  const PackedMatrix& weight = ready(context, o_, rows.expanded, &ExpandedMatrices::o);
  add_parts(context, x, [&](TensorView part) {
    ops.linear(context, attended, weight, o_bias_, Write::kAdd, part);
  });
}

void TransformerLayer::feed_forward(Context& context, const ExpandedMatrices* expanded,
                                    TensorView x) const {
  const Ops& ops = context.device.ops();
  const PackedMatrix& into = ready(context, gate_up_, expanded, &ExpandedMatrices::gate_up);
  const PackedMatrix& out_of = ready(context, down_, expanded, &ExpandedMatrices::down);
  add_parts(context, x, [&](TensorView sum) {
    for (int64_t begin = 0; begin < x.dim(0); begin += kMlpRows) {
      Arena::Scope scope(context.arena);
      const int64_t end = std::min(x.dim(0), begin + kMlpRows), count = end - begin;
      const TensorView normed = context.arena.take(compute_dtype_, {count, x.dim(1)});
      const TensorView gate_up =
          context.arena.take(compute_dtype_, {count, 2 * intermediate_size_});
      const TensorView activated = context.arena.take(compute_dtype_, {count, intermediate_size_});
      ops.rms_norm(context, x.rows(begin, end), post_attention_norm_, epsilon_, normed, {});
      ops.linear(context, normed, into, gate_up_bias_, Write::kOverwrite, gate_up);
      ops.swiglu(context, gate_up, activated);
      ops.linear(context, activated, out_of, down_bias_, Write::kAdd, sum.rows(begin, end));
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
