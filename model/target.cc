#include "model/target.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "kernels/device_collective.h"
#include "kernels/ops.h"
#include "model/greedy_choice.h"
#include "model/parameter_list.h"
#include "model/row_plan.h"
#include "model/target_files.h"
#include "model/transformer_layer.h"
#include "model/weights.h"

namespace percheron {
namespace {

class HfTarget final : public Target {
 public:
  HfTarget(Context& context, std::shared_ptr<const TargetFiles> files, TargetOptions options)
      : files_(std::move(files)),
        config_(files_->config),
        options_(std::move(options)),
        weights_(files_->weights),
        rope_(context.device, config_.rope, config_.head_dim, config_.max_position_embeddings) {
    compute_dtype_ = activation_dtype(context.device, options_.compute_dtype);
  }

  Status load_weights(Context& context);
  Status load_layers(Context& context) override;

  const ModelConfig& config() const override { return config_; }
  const TargetOptions& options() const override { return options_; }
  const std::string& weights_hash() const override { return weights_.content_hash(); }
  DType compute_dtype() const override { return compute_dtype_; }
  Status forward(Context& context, const PackedSequences& rows, KvCache* cache, TensorView captured,
                 TensorView last) override;
  Result<std::shared_ptr<const void>> begin_forward(Context& context, const PackedSequences& rows,
                                                    TensorView captured, TensorView last,
                                                    const SlotWritten& written) override;
  Result<std::vector<float>> all_states(Context& context, const PackedSequences& rows,
                                        std::span<const int32_t> wanted) override;
  Result<WeightsComparison> compare_weights(Context& context, const PackedSequences& rows) override;
  void logits(Context& context, ConstTensorView last, TensorView logits) override;
  void top1(Context& context, ConstTensorView last, TensorView out) override;
  ConstTensorView embedding() const override { return embedding_; }
  ConstTensorView head() const override { return config_.tie_word_embeddings ? embedding_ : head_; }
  ConstTensorView final_norm() const override { return final_norm_; }
  Result<HostWeight> layer_weight(int64_t layer, const std::string& name) const override;

 private:
  // What one pass needs on the device, with the host arrays that must outlive their copies.
  struct Pass {
    RowPlan plan;
    LayerRows rows;
    std::map<int64_t, ConstTensorView> intervals;  // by window
    PackedDocuments documents;                     // without a cache
    TensorView ids;                                // I32 [T]
  };
  /// Takes from the arena what lasts for the pass.
  Result<Pass> prepare(Context& context, const PackedSequences& rows, KvCache* cache);
  /// Puts the whole pass over the rows, of which there are some, into the stream.
  void put_in(Context& context, Pass& pass, TensorView captured, TensorView last,
              const SlotWritten& written);
  void run_layer(Context& context, const TransformerLayer& layer, int64_t index, Pass& pass,
                 TensorView x) const;
  Status check_outputs(int64_t rows, const KvCache* cache, const TensorView& captured,
                       const TensorView& last) const;
  Result<TransformerLayer> load_layer(Context& context, int64_t index,
                                      const TargetOptions& options) const {
    return TransformerLayer::load(context, config_, index, weights_, options);
  }
  /// Makes the room that weights of 8 bits are expanded into, once.
  void make_room(Context& context);
  bool is_captured(int64_t state) const;
  Result<Tensor> load_table(Context& context, const std::string& name) const;
  int64_t layers_to_run(const KvCache* cache, const TensorView& last) const;
  void capture(Context& context, int64_t state, ConstTensorView x, TensorView captured,
               const SlotWritten& written) const;

  /// Waits for the device, and no longer than the group for another rank.
  Status wait_idle(Context& context) const {
    DeviceCollective* const group = options_.shard.collective;
    return group == nullptr ? context.stream.wait_idle() : group->wait_idle(context.stream);
  }

  const std::shared_ptr<const TargetFiles> files_;
  const ModelConfig& config_;
  TargetOptions options_;
  DType compute_dtype_ = DType::kF32;
  const WeightFiles& weights_;
  RopeTable rope_;
  Tensor embedding_, head_, final_norm_;
  std::unique_ptr<PackedMatrix> packed_head_;
  std::vector<TransformerLayer> layers_;
  std::optional<ExpandedMatrices> expanded_;  // where weights are of 8 bits, once they are used
};

// The state after layer j of a captured block [T, K, H], as a matrix [T, H].
TensorView captured_state(const TensorView& captured, int64_t index) {
  const int64_t hidden = captured.dim(2);
  char* data = static_cast<char*>(captured.data()) +
               index * captured.stride(1) * static_cast<int64_t>(dtype_bytes(captured.dtype()));
  TensorView view;
  view.assign(data, captured.dtype(), 2, {captured.dim(0), hidden, 0, 0},
              {captured.stride(0), 1, 0, 0});
  return view;
}

Status check_capture(const TargetOptions& options, int64_t layers) {
  for (const int64_t state : options.capture) {
    if (state < 0 || state > layers) {
      return invalid_argument(fmt::format(
          "drafter.capture names state {}, the target has states 0 (embedding) to {} (after its "
          "last layer)",
          state, layers));
    }
  }
  return ok_status();
}

Status HfTarget::load_weights(Context& context) {
  PERCHERON_ASSIGN_OR_RETURN(embedding_, load_table(context, "embed_tokens.weight"));
  const std::string norm[] = {"norm.weight"};
  PERCHERON_ASSIGN_OR_RETURN(final_norm_, load_stacked_f32(context, weights_, norm));
  if (options_.layers) PERCHERON_RETURN_IF_ERROR(load_layers(context));
  if (options_.head) {
    const std::string name[] = {config_.tie_word_embeddings ? "embed_tokens.weight"
                                                            : "lm_head.weight"};
    if (!config_.tie_word_embeddings) {
      PERCHERON_ASSIGN_OR_RETURN(head_, load_table(context, name[0]));
    }
    PERCHERON_ASSIGN_OR_RETURN(packed_head_,
                               load_packed(context, weights_, name, options_.compute_dtype));
  }
  return context.stream.wait_idle();
}

Status HfTarget::load_layers(Context& context) {
  if (!layers_.empty()) return ok_status();
  std::vector<TransformerLayer> layers;
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    PERCHERON_ASSIGN_OR_RETURN(TransformerLayer layer, load_layer(context, i, options_));
    layers.push_back(std::move(layer));
  }
  make_room(context);
  PERCHERON_RETURN_IF_ERROR(context.stream.wait_idle());
  layers_ = std::move(layers);
  return ok_status();
}

void HfTarget::make_room(Context& context) {
  const bool each_pass = options_.expansion == WeightExpansion::kEachPass;
  if (options_.weights == WeightFormat::kFull || !each_pass || expanded_) return;
  expanded_ = TransformerLayer::make_room(context, config_, options_);
}

// As stored, but f16 as f32: the operations read only f32 and bf16.
Result<Tensor> HfTarget::load_table(Context& context, const std::string& name) const {
  const ConstTensorView& stored = weights_.view(name);
  const DType dtype = stored.dtype() == DType::kF16 ? DType::kF32 : stored.dtype();
  PERCHERON_ASSIGN_OR_RETURN(Tensor table, context.device.make_tensor(dtype, stored.shape()));
  if (dtype == stored.dtype()) {
    context.device.copy_bytes(context.stream, table.view().data(), stored.data(), stored.bytes());
  } else {
    Arena::Scope scope(context.arena);
    const TensorView staged = context.arena.take(stored.dtype(), {stored.dim(0), stored.dim(1)});
    context.device.copy_bytes(context.stream, staged.data(), stored.data(), stored.bytes());
    context.device.ops().copy(context, staged, table);
  }
  return table;
}

int64_t HfTarget::layers_to_run(const KvCache* cache, const TensorView& last) const {
  if (cache != nullptr || last.present() || options_.capture_last) {
    return config_.num_hidden_layers;
  }
  int64_t layers = 0;
  for (const int64_t state : options_.capture) layers = std::max(layers, state);
  return layers;
}

void HfTarget::capture(Context& context, int64_t state, ConstTensorView x, TensorView captured,
                       const SlotWritten& written) const {
  if (!captured.present()) return;
  const auto write = [&](int64_t slot) {
    context.device.ops().copy(context, x, captured_state(captured, slot));
    if (written) written(slot);
  };
  const auto slots = static_cast<int64_t>(options_.capture.size());
  for (int64_t slot = 0; slot < slots; ++slot) {
    if (options_.capture[static_cast<size_t>(slot)] == state) write(slot);
  }
  if (options_.capture_last && state == config_.num_hidden_layers) write(slots);
}

Status HfTarget::check_outputs(int64_t rows, const KvCache* cache, const TensorView& captured,
                               const TensorView& last) const {
  const int64_t slots =
      static_cast<int64_t>(options_.capture.size()) + (options_.capture_last ? 1 : 0);
  PERCHERON_CHECK(
      !captured.present() || (captured.rank() == 3 && captured.dim(0) == rows &&
                              captured.dim(1) == slots && captured.dim(2) == config_.hidden_size),
      "captured states are [T, K, H], the last layer's output counted in K");
  PERCHERON_CHECK(!last.present() || (last.rank() == 2 && last.dtype() == DType::kF32 &&
                                      last.dim(0) == rows && last.dim(1) == config_.hidden_size),
                  "the last state is [T, H] f32");
  PERCHERON_CHECK(cache == nullptr || options_.shard.size == 1,
                  "a rank of several keeps no keys and values");
  if (cache != nullptr && cache->keys(0).dtype() != compute_dtype_) {
    return invalid_argument(fmt::format("the key/value cache is {}, the target computes in {}",
                                        dtype_name(cache->keys(0).dtype()),
                                        dtype_name(compute_dtype_)));
  }
  return ok_status();
}

void HfTarget::put_in(Context& context, Pass& pass, TensorView captured, TensorView last,
                      const SlotWritten& written) {
  const TensorView x =
      last.present() && last.contiguous()
          ? last
          : context.arena.take(DType::kF32, {pass.ids.dim(0), config_.hidden_size});
  context.device.ops().gather_rows(context, embedding_, pass.ids, x);
  capture(context, 0, x, captured, written);
  const int64_t layers = layers_to_run(pass.rows.cache, last);
  for (int64_t i = 0; i < layers; ++i) {
    run_layer(context, layers_[static_cast<size_t>(i)], i, pass, x);
    capture(context, i + 1, x, captured, written);
  }
  if (last.present() && last.data() != x.data()) context.device.ops().copy(context, x, last);
}

Status HfTarget::forward(Context& context, const PackedSequences& rows, KvCache* cache,
                         TensorView captured, TensorView last) {
  const int64_t count = static_cast<int64_t>(rows.token_ids.size());
  PERCHERON_CHECK(!layers_.empty(), "the target's layers are loaded before it runs");
  PERCHERON_RETURN_IF_ERROR(check_outputs(count, cache, captured, last));
  Arena::Scope scope(context.arena);
  PERCHERON_ASSIGN_OR_RETURN(Pass pass, prepare(context, rows, cache));
  if (count == 0) return ok_status();
  put_in(context, pass, captured, last, {});
  // The plan's host arrays must outlive their copies.
  PERCHERON_RETURN_IF_ERROR(wait_idle(context));
  for (size_t d = 0; d < rows.cache_slots.size(); ++d) {
    cache->used[static_cast<size_t>(rows.cache_slots[d])] = pass.plan.lengths[d];
  }
  return ok_status();
}

Result<std::shared_ptr<const void>> HfTarget::begin_forward(Context& context,
                                                            const PackedSequences& rows,
                                                            TensorView captured, TensorView last,
                                                            const SlotWritten& written) {
  const int64_t count = static_cast<int64_t>(rows.token_ids.size());
  PERCHERON_CHECK(!layers_.empty(), "the target's layers are loaded before it runs");
  PERCHERON_RETURN_IF_ERROR(check_outputs(count, nullptr, captured, last));
  // The arena gives its memory to the next pass, which the same stream runs after this one.
  Arena::Scope scope(context.arena);
  PERCHERON_ASSIGN_OR_RETURN(Pass prepared, prepare(context, rows, nullptr));
  const auto pass = std::make_shared<Pass>(std::move(prepared));
  if (count > 0) put_in(context, *pass, captured, last, written);
  return std::shared_ptr<const void>(pass);
}

Result<std::vector<float>> HfTarget::all_states(Context& context, const PackedSequences& rows,
                                                std::span<const int32_t> wanted) {
  const int64_t count = static_cast<int64_t>(rows.token_ids.size());
  const auto hidden = static_cast<size_t>(config_.hidden_size);
  const auto states = static_cast<size_t>(config_.num_hidden_layers) + 1;
  std::vector<float> result(wanted.size() * states * hidden);
  if (count == 0) return result;
  make_room(context);
  Arena::Scope scope(context.arena);
  PERCHERON_ASSIGN_OR_RETURN(Pass pass, prepare(context, rows, nullptr));
  const TensorView x = context.arena.take(DType::kF32, {count, config_.hidden_size});
  context.device.ops().gather_rows(context, embedding_, pass.ids, x);
  std::vector<float> state(static_cast<size_t>(x.elements()));
  for (size_t j = 0; j < states; ++j) {
    context.device.copy_bytes(context.stream, state.data(), x.data(), x.bytes());
    PERCHERON_RETURN_IF_ERROR(wait_idle(context));
    for (size_t r = 0; r < wanted.size(); ++r) {
      std::copy_n(state.data() + static_cast<size_t>(wanted[r]) * hidden, hidden,
                  result.data() + (r * states + j) * hidden);
    }
    if (j + 1 == states) break;
    const auto index = static_cast<int64_t>(j);
    if (!layers_.empty()) {
      run_layer(context, layers_[j], index, pass, x);
      continue;
    }
    PERCHERON_ASSIGN_OR_RETURN(const TransformerLayer layer, load_layer(context, index, options_));
    run_layer(context, layer, index, pass, x);
    PERCHERON_RETURN_IF_ERROR(wait_idle(context));  // before its weights are freed
  }
  return result;
}

bool HfTarget::is_captured(int64_t state) const {
  if (options_.capture_last && state == config_.num_hidden_layers) return true;
  return std::ranges::find(options_.capture, state) != options_.capture.end();
}

namespace {

// Sums of squares in f64, of what is compared so far.
struct SquareSums {
  double difference = 0, full = 0;
};

Status add_squares(Context& context, ConstTensorView kept, ConstTensorView full, SquareSums& sums) {
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<float> a, to_host<float>(context, kept));
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<float> b, to_host<float>(context, full));
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = double{a[i]} - double{b[i]};
    sums.difference += difference * difference;
    sums.full += double{b[i]} * double{b[i]};
  }
  return ok_status();
}

}  // namespace

Result<WeightsComparison> HfTarget::compare_weights(Context& context, const PackedSequences& rows) {
  PERCHERON_CHECK(!layers_.empty(), "weights are compared when they are loaded");
  const auto count = static_cast<int64_t>(rows.token_ids.size());
  WeightsComparison comparison{.tokens = count};
  if (count == 0) return comparison;
  const Arena::Scope scope(context.arena);
  const Ops& ops = context.device.ops();
  PERCHERON_ASSIGN_OR_RETURN(Pass pass, prepare(context, rows, nullptr));
  const TensorView kept = context.arena.take(DType::kF32, {count, config_.hidden_size});
  const TensorView full = context.arena.take(DType::kF32, {count, config_.hidden_size});
  ops.gather_rows(context, embedding_, pass.ids, kept);
  ops.gather_rows(context, embedding_, pass.ids, full);
  SquareSums sums;
  TargetOptions with_full_weights = options_;
  with_full_weights.weights = WeightFormat::kFull;
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    run_layer(context, layers_[static_cast<size_t>(i)], i, pass, kept);
    PERCHERON_ASSIGN_OR_RETURN(const TransformerLayer layer,
                               load_layer(context, i, with_full_weights));
    run_layer(context, layer, i, pass, full);
    PERCHERON_RETURN_IF_ERROR(wait_idle(context));  // before its weights are freed
    if (is_captured(i + 1)) PERCHERON_RETURN_IF_ERROR(add_squares(context, kept, full, sums));
  }
  if (sums.full > 0) comparison.state_difference = std::sqrt(sums.difference / sums.full);
  if (packed_head_ == nullptr) return comparison;
  const TensorView ids = context.arena.take(DType::kI32, {2, count});
  top1(context, kept, ids.rows(0, 1).reshaped({count}));
  top1(context, full, ids.rows(1, 2).reshaped({count}));
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<int32_t> chosen, to_host<int32_t>(context, ids));
  comparison.same_top1 = 0;
  for (size_t i = 0; i < rows.token_ids.size(); ++i) {
    comparison.same_top1 += chosen[i] == chosen[i + rows.token_ids.size()] ? 1 : 0;
  }
  return comparison;
}

Result<HfTarget::Pass> HfTarget::prepare(Context& context, const PackedSequences& rows,
                                         KvCache* cache) {
  const int64_t count = static_cast<int64_t>(rows.token_ids.size());
  Pass pass;
  PERCHERON_ASSIGN_OR_RETURN(pass.plan,
                             plan_rows(rows, config_.vocab_size, cache, config_.sliding_window));
  if (count == 0) return pass;
  RowPlan& plan = pass.plan;
  const bool dynamic = config_.rope.type == RopeType::kDynamic;
  const int64_t longest = *std::max_element(plan.lengths.begin(), plan.lengths.end());
  if (dynamic && cache != nullptr && longest > config_.max_position_embeddings) {
    return invalid_argument(fmt::format(
        "a sequence of {} tokens exceeds max_position_embeddings = {}: with a dynamic rope its "
        "cached keys would turn at every token, so generation stops there",
        longest, config_.max_position_embeddings));
  }
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<int32_t> first_rows,
                             rope_.reserve_documents(context, plan.lengths));
  for (size_t n = 0; n < plan.positions.size(); ++n) {
    plan.positions[n] += first_rows[static_cast<size_t>(plan.sequence[n])];
  }
  pass.rows.rope_rows = upload(context, plan.positions, {count});
  pass.rows.cos = rope_.cos();
  pass.rows.sin = rope_.sin();
  pass.rows.cache = cache;
  pass.rows.cache_runs = plan.cache_runs;
  pass.rows.expanded = expanded_ ? &*expanded_ : nullptr;
  for (const auto& [window, values] : plan.intervals) {
    pass.intervals[window] = upload(context, values, {count, 4});
  }
  if (!plan.causal_windows.empty()) {
    pass.documents = {upload(context, rows.offsets, {static_cast<int64_t>(rows.offsets.size())}),
                      longest};
  }
  pass.ids = upload(context, rows.token_ids, {count});
  return pass;
}

void HfTarget::run_layer(Context& context, const TransformerLayer& layer, int64_t index, Pass& pass,
                         TensorView x) const {
  const int64_t window = config_.sliding_window[static_cast<size_t>(index)];
  pass.rows.intervals = pass.intervals[window];
  pass.rows.documents.reset();
  if (pass.plan.causal_windows.contains(window)) pass.rows.documents = pass.documents;
  layer.forward(context, pass.rows, x);
}

void HfTarget::logits(Context& context, ConstTensorView last, TensorView logits) {
  PERCHERON_CHECK(packed_head_ != nullptr, "logits need a target that was loaded with its head");
  if (last.dim(0) == 0) return;
  Arena::Scope scope(context.arena);
  const TensorView normed = context.arena.take(compute_dtype_, {last.dim(0), config_.hidden_size});
  context.device.ops().rms_norm(context, last, final_norm_,
                                static_cast<float>(config_.rms_norm_eps), normed, {});
  context.device.ops().linear(context, normed, *packed_head_, {}, Write::kOverwrite, logits);
}

void HfTarget::top1(Context& context, ConstTensorView last, TensorView out) {
  const auto logits_of = [&](int64_t begin, int64_t end, TensorView chunk) {
    logits(context, last.rows(begin, end), chunk);
  };
  choose_greedily(context, last.dim(0), config_.vocab_size, out, logits_of);
}

Result<HostWeight> HfTarget::layer_weight(int64_t layer, const std::string& name) const {
  const std::string full = fmt::format("layers.{}.{}", layer, name);
  if (layer < 0 || layer >= config_.num_hidden_layers || !weights_.contains(full)) {
    return not_found(fmt::format("the target has no weight '{}' in layer {} (it has {} layers)",
                                 name, layer, config_.num_hidden_layers));
  }
  const ConstTensorView view = weights_.view(full);
  return HostWeight{to_floats(view), {view.shape().begin(), view.shape().end()}};
}

}  // namespace

Result<std::unique_ptr<Target>> Target::load(FileSystem& files, const std::string& directory,
                                             Context& context, const TargetOptions& options) {
  PERCHERON_ASSIGN_OR_RETURN(ModelConfig config, read_model_config(files, directory));
  PERCHERON_RETURN_IF_ERROR(check_capture(options, config.num_hidden_layers));
  PERCHERON_ASSIGN_OR_RETURN(std::shared_ptr<const TargetFiles> opened,
                             open_target_files(files, directory, std::move(config)));
  return load(std::move(opened), context, options);
}

Result<std::unique_ptr<Target>> Target::load(std::shared_ptr<const TargetFiles> files,
                                             Context& context, const TargetOptions& options) {
  PERCHERON_CHECK(options.compute_dtype == DType::kF32 || options.compute_dtype == DType::kBf16,
                  "a target computes in f32 or bf16");
  PERCHERON_CHECK(options.shard.size == 1 || options.shard.collective != nullptr,
                  "ranks of one target sum with each other");
  PERCHERON_RETURN_IF_ERROR(check_capture(options, files->config.num_hidden_layers));
  PERCHERON_RETURN_IF_ERROR(check_tensor_parallel(files->config, options.shard.size));
  auto target = std::make_unique<HfTarget>(context, files, options);
  PERCHERON_RETURN_IF_ERROR(target->load_weights(context).with_context(files->directory));
  return std::unique_ptr<Target>(std::move(target));
}

}  // namespace percheron
