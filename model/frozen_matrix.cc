#include "model/frozen_matrix.h"

#include <vector>

namespace percheron {
namespace {

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

namespace {

Result<FrozenMatrix> load_codes(Context& context, const WeightFiles& weights,
                                std::span<const std::string> names, DType codes, Split split,
                                const TargetShard& shard) {
  // Of a share of the columns the rows are staged whole, for their scales.
  const bool columns = split == Split::kInputs;
  const Shares shares(weights, names, columns ? Split::kNone : split, shard);
  const int64_t out_features = shares.extent(0);
  const int64_t in_features = shares.views[0].dim(1) / (columns ? shard.size : 1);
  FrozenMatrix matrix;
  PERCHERON_ASSIGN_OR_RETURN(matrix.codes,
                             context.device.make_tensor(codes, {out_features, in_features}));
  PERCHERON_ASSIGN_OR_RETURN(matrix.scales,
                             context.device.make_tensor(DType::kF32, {out_features}));
  int64_t begin = 0;
  for (const ConstTensorView& stored : shares.views) {
    const Arena::Scope scope(context.arena);
    const int64_t end = begin + stored.dim(0);
    context.device.ops().quantize_rows(
        context, stage(context, stored), columns ? in_features * shard.rank : 0,
        matrix.scales.view().rows(begin, end), matrix.codes.view().rows(begin, end));
    begin = end;
  }
  PERCHERON_RETURN_IF_ERROR(context.stream.wait_idle().with_context("loading " + names[0]));
  return matrix;
}

}  // namespace

Result<FrozenMatrix> load_frozen(Context& context, const WeightFiles& weights,
                                 std::span<const std::string> names, const TargetOptions& options,
                                 Split split) {
  FrozenMatrix matrix;
  const std::optional<DType> codes = code_dtype(options.weights);
  if (!codes) {
    PERCHERON_ASSIGN_OR_RETURN(
        matrix.packed,
        load_packed(context, weights, names, options.compute_dtype, split, options.shard));
    return matrix;
  }
  PERCHERON_ASSIGN_OR_RETURN(matrix,
                             load_codes(context, weights, names, *codes, split, options.shard));
  if (options.expansion == WeightExpansion::kEachPass) return matrix;
  const TensorView shape = matrix.codes;
  FrozenMatrix expanded;
  expanded.packed = context.device.ops().make_packed(context, shape.dim(0), shape.dim(1),
                                                     options.compute_dtype, MatrixUse::kForward);
  matrix.ready(context, expanded.packed.get());
  PERCHERON_RETURN_IF_ERROR(context.stream.wait_idle().with_context("loading " + names[0]));
  return expanded;
}

const PackedMatrix& FrozenMatrix::ready(Context& context, PackedMatrix* room) const {
  if (packed != nullptr) return *packed;
  PERCHERON_CHECK(room != nullptr, "a weight of 8 bits is expanded somewhere");
  context.device.ops().pack_quantized(context, codes, scales, *room);
  return *room;
}

}  // namespace percheron
