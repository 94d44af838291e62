#include <fmt/format.h>

#include <algorithm>

#include "model/dflash_blocks.h"
#include "model/draft_sources.h"
#include "model/parameter_list.h"

namespace percheron {
namespace {

// Blocks that a walk drafts at once.
constexpr int64_t kBlocksAtOnce = 64;

/// Keys and values of one layer: context rows, then those of the blocks being drafted.
struct LayerCache {
  Tensor keys, values;  // [rows, kv heads * head_dim]
};

Result<std::vector<LayerCache>> make_caches(Context& context, const DflashDrafter& drafter,
                                            int64_t rows) {
  std::vector<LayerCache> caches(drafter.layers().size());
  const int64_t columns = key_columns(drafter.config());
  for (LayerCache& cache : caches) {
    for (Tensor* tensor : {&cache.keys, &cache.values}) {
      PERCHERON_ASSIGN_OR_RETURN(
          *tensor, context.device.make_tensor(drafter.compute_dtype(), {rows, columns}));
      context.device.ops().fill_zero(context, *tensor);  // Masked keys must still be finite.
    }
  }
  PERCHERON_RETURN_IF_ERROR(context.stream.wait_idle());
  return caches;
}

// Fuses captured states [n, K H] and appends their keys and values at rows begin .. begin + n.
void append_context(Context& context, const DflashDrafter& drafter, ConstTensorView states,
                    ConstTensorView positions, int64_t begin, std::vector<LayerCache>& caches) {
  const Arena::Scope scope(context.arena);
  const int64_t end = begin + states.dim(0);
  const TensorView fused = context.arena.take(drafter.compute_dtype(),
                                              {states.dim(0), drafter.config().body.hidden_size});
  drafter.fuse_states(context, states, fused);
  for (size_t i = 0; i < caches.size(); ++i) {
    drafter.layers()[i]->append(context, drafter.rope(), fused, positions,
                                caches[i].keys.view().rows(begin, end),
                                caches[i].values.view().rows(begin, end));
  }
}

// Drafts the blocks over blocks.tokens context rows; returns the tokens of slots 1 .. S - 1 of
// each.
Result<std::vector<int32_t>> draft_blocks(Context& context, const DflashDrafter& drafter,
                                          const DflashBlocks& blocks,
                                          std::vector<LayerCache>& caches) {
  const Arena::Scope scope(context.arena);
  const DrafterConfig& config = drafter.config();
  const auto count = static_cast<int64_t>(blocks.input_ids.size());
  const int64_t begin = blocks.tokens, end = begin + count;
  const TensorView ids = upload(context, blocks.input_ids, {count});
  const TensorView x = context.arena.take(DType::kF32, {count, config.body.hidden_size});
  drafter.embed(context, ids, x);
  DflashLayer::CachedRows rows;
  rows.positions = upload(context, blocks.block_positions, {count});
  std::vector<std::vector<int32_t>> intervals;  // One per layer, alive until the stream is idle.
  for (size_t i = 0; i < caches.size(); ++i) {
    intervals.push_back(dflash_intervals(blocks, config, window_of(config, i)));
    rows.intervals = upload(context, intervals.back(), {count, 4});
    rows.keys = caches[i].keys.view().rows(0, end);
    rows.values = caches[i].values.view().rows(0, end);
    rows.own_keys = caches[i].keys.view().rows(begin, end);
    rows.own_values = caches[i].values.view().rows(begin, end);
    drafter.layers()[i]->draft(context, drafter.rope(), rows, x);
  }
  std::vector<int32_t> slots;
  for (int32_t row = 0; row < count; ++row) {
    if (row % blocks.block_size != 0) slots.push_back(row);
  }
  const auto drafts = static_cast<int64_t>(slots.size());
  const TensorView wanted = upload(context, slots, {drafts});
  const TensorView outputs = context.arena.take(DType::kF32, {drafts, config.body.hidden_size});
  const TensorView choice = context.arena.take(DType::kI32, {drafts});
  context.device.ops().gather_rows(context, x, wanted, outputs);
  drafter.choose(context, outputs, choice);
  std::vector<int32_t> tokens(slots.size());
  context.device.copy_bytes(context.stream, tokens.data(), choice.data(), choice.bytes());
  PERCHERON_RETURN_IF_ERROR(context.stream.wait_idle());
  for (int32_t& token : tokens) token = target_token(drafter.draft_ids(), token);
  return tokens;
}

// A block of `size` slots whose anchor, `token`, stands at `row` of the document that starts at
// `first`.
void add_block(const DrafterConfig& config, int64_t size, int64_t row, int64_t first, int32_t token,
               DflashBlocks& blocks) {
  blocks.anchors.push_back({static_cast<int32_t>(row), 0});
  blocks.begins.push_back(static_cast<int32_t>(first));
  for (int64_t slot = 0; slot < size; ++slot) {
    blocks.input_ids.push_back(slot == 0 ? token : static_cast<int32_t>(config.mask_token_id));
    blocks.block_positions.push_back(static_cast<int32_t>(row - first + slot));
  }
}

/// Drafts a block at once. Its cache holds keys and values of the verified rows, once each; those
/// of a block lie behind them and are overwritten.
class DflashSource final : public DraftSource {
 public:
  DflashSource(const DflashDrafter& drafter, std::vector<LayerCache> caches, int64_t length_max)
      : drafter_(drafter), caches_(std::move(caches)), length_max_(length_max) {}

  void reset() override { used_ = 0; }

  Result<std::vector<int32_t>> draft(Context& context, ConstTensorView features,
                                     std::span<const int32_t> next, int64_t count) override {
    const DrafterConfig& config = drafter_.config();
    PERCHERON_ASSIGN_OR_RETURN(const ConstTensorView states, captured_columns(config, features));
    const int64_t fresh = states.dim(0), end = used_ + fresh;
    PERCHERON_CHECK(fresh > 0 && fresh == static_cast<int64_t>(next.size()),
                    "a token after each row");
    if (end > length_max_) {
      return resource_exhausted(fmt::format(
          "{} verified tokens exceed the draft source's limit of {}", end, length_max_));
    }
    const Arena::Scope scope(context.arena);
    std::vector<int32_t> positions;
    for (int64_t row = used_; row < end; ++row) positions.push_back(static_cast<int32_t>(row));
    append_context(context, drafter_, states, upload(context, positions, {fresh}), used_, caches_);
    PERCHERON_RETURN_IF_ERROR(context.stream.wait_idle());
    used_ = end;
    DflashBlocks blocks;
    blocks.tokens = used_;
    blocks.block_size = std::min(config.block_size, count + 1);
    if (blocks.block_size < 2) return std::vector<int32_t>();
    add_block(config, blocks.block_size, used_, 0, next.back(), blocks);
    return draft_blocks(context, drafter_, blocks, caches_);
  }

 private:
  const DflashDrafter& drafter_;
  std::vector<LayerCache> caches_;  // [length_max + block_size, ...]
  int64_t length_max_;
  int64_t used_ = 0;
};

// Rows whose token is supervised and has a row before it in its document, with that document.
struct BonusRow {
  int32_t row = 0, first = 0, end = 0;
};

std::vector<BonusRow> bonus_rows(const MicroBatch& batch) {
  std::vector<BonusRow> rows;
  for (size_t d = 0; d + 1 < batch.offsets.size(); ++d) {
    for (int32_t row = batch.offsets[d] + 1; row < batch.offsets[d + 1]; ++row) {
      if (batch.loss_mask[static_cast<size_t>(row)] != 0)
        rows.push_back({row, batch.offsets[d], batch.offsets[d + 1]});
    }
  }
  return rows;
}

std::vector<int32_t> context_positions(const MicroBatch& batch) {
  std::vector<int32_t> positions;
  for (size_t d = 0; d + 1 < batch.offsets.size(); ++d) {
    for (int32_t row = batch.offsets[d]; row < batch.offsets[d + 1]; ++row) {
      positions.push_back(row - batch.offsets[d]);
    }
  }
  return positions;
}

}  // namespace

Result<std::unique_ptr<DraftSource>> make_dflash_source(Context& context,
                                                        const DflashDrafter& drafter,
                                                        int64_t length_max) {
  const int64_t rows = length_max + drafter.config().block_size;
  PERCHERON_RETURN_IF_ERROR(drafter.reserve_positions(context, rows));
  PERCHERON_ASSIGN_OR_RETURN(std::vector<LayerCache> caches, make_caches(context, drafter, rows));
  return std::unique_ptr<DraftSource>(
      std::make_unique<DflashSource>(drafter, std::move(caches), length_max));
}

Result<std::vector<int32_t>> dflash_accepted(Context& context, const DflashDrafter& drafter,
                                             const Features& features, int64_t drafts) {
  const DrafterConfig& config = drafter.config();
  const MicroBatch& batch = features.batch;
  const int64_t tokens = batch.tokens();
  std::vector<int32_t> accepted(static_cast<size_t>(tokens), 0);
  const std::vector<BonusRow> rows = bonus_rows(batch);
  if (rows.empty()) return accepted;
  const int64_t size = std::min(config.block_size, drafts + 1);
  const int64_t at_once = std::min<int64_t>(kBlocksAtOnce, static_cast<int64_t>(rows.size()));
  PERCHERON_RETURN_IF_ERROR(drafter.reserve_positions(context, tokens + size));
  PERCHERON_ASSIGN_OR_RETURN(std::vector<LayerCache> caches,
                             make_caches(context, drafter, tokens + at_once * size));
  const std::vector<int32_t> positions = context_positions(batch);
  {
    const Arena::Scope scope(context.arena);
    const ConstTensorView host = features.hidden_view();
    const TensorView states =
        context.arena.take(features.dtype, {tokens, host.dim(1), host.dim(2)});
    context.device.copy_bytes(context.stream, states.data(), host.data(), host.bytes());
    PERCHERON_ASSIGN_OR_RETURN(const ConstTensorView columns, captured_columns(config, states));
    append_context(context, drafter, columns, upload(context, positions, {tokens}), 0, caches);
    PERCHERON_RETURN_IF_ERROR(context.stream.wait_idle());
  }
  for (size_t begin = 0; begin < rows.size(); begin += static_cast<size_t>(at_once)) {
    const size_t end = std::min(rows.size(), begin + static_cast<size_t>(at_once));
    DflashBlocks blocks;
    blocks.tokens = tokens;
    blocks.block_size = size;
    for (size_t i = begin; i < end; ++i) {
      const auto token = static_cast<int32_t>(batch.token_ids[static_cast<size_t>(rows[i].row)]);
      add_block(config, size, rows[i].row, rows[i].first, token, blocks);
    }
    PERCHERON_ASSIGN_OR_RETURN(const std::vector<int32_t> drafted,
                               draft_blocks(context, drafter, blocks, caches));
    for (size_t i = begin; i < end; ++i) {
      int32_t run = 0;
      const auto first = (i - begin) * static_cast<size_t>(size - 1);
      while (run < size - 1 && drafted[first + static_cast<size_t>(run)] ==
                                   supervised_token(batch, rows[i].row + 1 + run, rows[i].end)) {
        ++run;
      }
      accepted[static_cast<size_t>(rows[i].row - 1)] = run;
    }
  }
  return accepted;
}

}  // namespace percheron
