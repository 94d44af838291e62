#pragma once

#include <memory>
#include <span>

#include "kernels/ops.h"

namespace percheron {

/// The target's output matrix, or the rows of it that make a draft vocabulary; packed once, never
/// trained.
class FrozenHead {
 public:
  /// head: [V, H], f32 or bf16, borrowed during the call. `draft_ids`: ascending target ids, empty
  /// for all rows. `backward`: also keep the layout for gradients of the input.
  FrozenHead(Context& context, ConstTensorView head, std::span<const int32_t> draft_ids,
             DType dtype, bool backward);

  int64_t rows() const { return forward_->out_features; }
  /// logits = x W^T. x: [R, H]; logits: [R, rows] f32.
  void forward(Context& context, ConstTensorView x, TensorView logits) const;
  /// dx (+)= dlogits W.
  void backward(Context& context, ConstTensorView dlogits, Write write, TensorView dx) const;

 private:
  std::unique_ptr<PackedMatrix> forward_, backward_;
};

/// out = the rows of `head` that `draft_ids` name (all when empty), converted. out: [draft
/// vocabulary, H].
void copy_head_rows(Context& context, ConstTensorView head, std::span<const int32_t> draft_ids,
                    TensorView out);

}  // namespace percheron
