#pragma once

#include <memory>
#include <span>
#include <string>

#include "kernels/device.h"
#include "kernels/ops.h"
#include "model/target.h"
#include "model/target_shard.h"
#include "model/weights.h"

namespace percheron {

/// A frozen weight [out, in]: packed for products, or rows of 8 bits with a scale each.
struct FrozenMatrix {
  std::unique_ptr<PackedMatrix> packed;  // null where there are codes
  Tensor codes;                          // [out, in] kI8 or kF8E4m3
  Tensor scales;                         // [out] f32

  /// The matrix as products take it: `packed`, or `room`, which is filled from the codes and has
  /// the matrix's shape. Valid until the room's next use.
  const PackedMatrix& ready(Context& context, PackedMatrix* room) const;
};

/// The shard's part of the stored tensors, stacked by rows, as f32 on the device; absent when
/// `names` is empty.
Result<Tensor> load_stacked_f32(Context& context, const WeightFiles& weights,
                                std::span<const std::string> names, Split split = Split::kNone,
                                const TargetShard& shard = {});

/// The shard's part of the stored matrices [out_i, in], stacked by rows and packed for products in
/// `dtype`.
Result<std::unique_ptr<PackedMatrix>> load_packed(Context& context, const WeightFiles& weights,
                                                  std::span<const std::string> names, DType dtype,
                                                  Split split = Split::kNone,
                                                  const TargetShard& shard = {});

/// As load_packed(), for the products, in the format and of the shard that the options say. A
/// matrix at a time is on the device as it is stored. With 8 bits a row's scale is that of the
/// whole stored row, so that the ranks of a Split::kInputs have the codes of one device.
Result<FrozenMatrix> load_frozen(Context& context, const WeightFiles& weights,
                                 std::span<const std::string> names, const TargetOptions& options,
                                 Split split);

}  // namespace percheron
