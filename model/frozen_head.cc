#include "model/frozen_head.h"

#include "model/parameter_list.h"

namespace percheron {

void copy_head_rows(Context& context, ConstTensorView head, std::span<const int32_t> draft_ids,
                    TensorView out) {
  const Arena::Scope scope(context.arena);
  if (draft_ids.empty()) {
    context.device.ops().copy(context, head, out);
    return;
  }
  const TensorView rows = upload(context, draft_ids, {static_cast<int64_t>(draft_ids.size())});
  context.device.ops().gather_rows(context, head, rows, out);
}

Result<std::vector<float>> head_rows(Context& context, ConstTensorView head,
                                     std::span<const int32_t> draft_ids) {
  const Arena::Scope scope(context.arena);
  const int64_t count = draft_ids.empty() ? head.dim(0) : static_cast<int64_t>(draft_ids.size());
  const TensorView rows = context.arena.take(DType::kF32, {count, head.dim(1)});
  copy_head_rows(context, head, draft_ids, rows);
  return to_host<float>(context, rows);
}

FrozenHead::FrozenHead(Context& context, ConstTensorView head, std::span<const int32_t> draft_ids,
                       DType dtype, Products products) {
  const Ops& ops = context.device.ops();
  const Arena::Scope scope(context.arena);
  const int64_t hidden = head.dim(1);
  const int64_t rows = draft_ids.empty() ? head.dim(0) : static_cast<int64_t>(draft_ids.size());
  ConstTensorView weight = head;
  if (!draft_ids.empty()) {
    const TensorView chosen = context.arena.take(
        head.dtype() == DType::kBf16 ? DType::kBf16 : DType::kF32, {rows, hidden});
    copy_head_rows(context, head, draft_ids, chosen);
    weight = chosen;
  }
  forward_ = ops.make_packed(context, rows, hidden, dtype, MatrixUse::kForward);
  ops.pack(context, weight, *forward_);
  if (products == Products::kForwardAndBackward) {
    backward_ = ops.make_packed(context, rows, hidden, dtype, MatrixUse::kBackward);
    ops.pack(context, weight, *backward_);
  }
}

void FrozenHead::forward(Context& context, ConstTensorView x, TensorView logits) const {
  context.device.ops().linear(context, x, *forward_, ConstTensorView(), Write::kOverwrite, logits);
}

void FrozenHead::backward(Context& context, ConstTensorView dlogits, Write write,
                          TensorView dx) const {
  PERCHERON_CHECK(backward_ != nullptr, "this head was made without a backward layout");
  context.device.ops().linear_backward_input(context, dlogits, *backward_, write, dx);
}

}  // namespace percheron
