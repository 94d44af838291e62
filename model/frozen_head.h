#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/ops.h"
#include "model/parameter.h"

namespace percheron {

/// The target's output matrix, or the rows of it that make a draft vocabulary; packed once, never
/// trained.
class FrozenHead {
 public:
  /// head: [V, H], f32 or bf16, borrowed during the call. `draft_ids`: ascending target ids, empty
  /// for all rows. Without memory for the packed copies the stream keeps kResourceExhausted.
  FrozenHead(Context& context, ConstTensorView head, std::span<const int32_t> draft_ids,
             DType dtype, Products products);

  int64_t rows() const { return forward_->out_features; }
  /// logits = x W^T. x: [R, H]; logits: [R, rows] f32.
  void forward(Context& context, ConstTensorView x, TensorView logits) const;
  /// dx (+)= dlogits W.
  void backward(Context& context, ConstTensorView dlogits, Write write, TensorView dx) const;

 private:
  std::unique_ptr<PackedMatrix> forward_, backward_;
};

/// out = the rows of `head` [V, H] that `draft_ids` name (all when empty), converted. out: [draft
/// vocabulary, H].
void copy_head_rows(Context& context, ConstTensorView head, std::span<const int32_t> draft_ids,
                    TensorView out);
/// The same rows in host memory, f32. Waits for the stream.
Result<std::vector<float>> head_rows(Context& context, ConstTensorView head,
                                     std::span<const int32_t> draft_ids);

}  // namespace percheron
