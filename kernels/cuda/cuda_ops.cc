#include "kernels/cuda/cuda_ops.h"

#include "kernels/cuda/kernel_stream.h"
#include "kernels/cuda/kernels.h"
#include "kernels/shapes.h"

namespace percheron::cuda {

void CudaOps::copy(Context& context, ConstTensorView source, TensorView destination) const {
  check_same_shape(source, destination);
  if (source.elements() == 0) return;
  if (source.contiguous() && destination.contiguous()) {
    cuda::copy(queue_of(context, {source, destination}), elements_of(source),
               elements_of(destination));
  } else {
    cuda::copy(queue_of(context, {source, destination}), floats_of(source), floats_of(destination));
  }
}

void CudaOps::fill_zero(Context& context, TensorView x) const {
  if (x.contiguous()) x = TensorView(x.data(), x.dtype(), {x.elements()});
  cuda::fill_zero(queue_of(context, {x}), rows_of(x));
}

void CudaOps::add(Context& context, ConstTensorView x, TensorView y) const {
  check_same_shape(x, y);
  if (x.elements() == 0) return;
  if (x.contiguous() && y.contiguous()) {
    cuda::add(queue_of(context, {x, y}), elements_of(x), elements_of(y));
  } else {
    cuda::add(queue_of(context, {x, y}), floats_of(x), floats_of(y));
  }
}

void CudaOps::gather_rows(Context& context, ConstTensorView table, ConstTensorView rows,
                          TensorView out) const {
  PERCHERON_CHECK(out.dim(0) == rows.elements() && out.dim(1) == table.dim(1), describe(out));
  cuda::gather_rows(queue_of(context, {table, rows, out}), floats_of(table),
                    vector_of<int32_t>(rows), activations_of(out));
}

void CudaOps::scatter_add_rows(Context& context, ConstTensorView x, ConstTensorView rows,
                               TensorView out) const {
  PERCHERON_CHECK(x.dim(0) == rows.elements() && x.dim(1) == out.dim(1), describe(x));
  PERCHERON_CHECK(out.dtype() == DType::kF32, describe(out));
  cuda::scatter_add_rows(queue_of(context, {x, rows, out}), activations_of(x),
                         vector_of<int32_t>(rows), rows_of(out));
}

void CudaOps::rms_norm(Context& context, ConstTensorView x, ConstTensorView weight, float epsilon,
                       TensorView out, TensorView inverse_rms) const {
  check_same_shape(x, out);
  PERCHERON_CHECK(weight.elements() == x.dim(-1), describe(weight));
  cuda::rms_norm(queue_of(context, {x, weight, out, inverse_rms}), activations_of(x),
                 vector_of<float>(weight), epsilon, activations_of(out),
                 vector_or_null<float>(inverse_rms));
}

void CudaOps::rms_norm_backward(Context& context, ConstTensorView dy, ConstTensorView x,
                                ConstTensorView weight, ConstTensorView inverse_rms, Write write,
                                TensorView dx, TensorView dweight) const {
  check_same_shape(x, dy);
  check_same_shape(x, dx);
  if (x.elements() == 0) return;
  const Arena::Scope scope(context.arena);
  float* partial = nullptr;
  if (dweight.present()) {
    partial = context.arena.take(DType::kF32, {kNormBlocksMax, x.dim(-1)}).as<float>();
  }
  cuda::rms_norm_backward(queue_of(context, {dy, x, weight, inverse_rms, dx, dweight}),
                          {.dy = activations_of(dy),
                           .x = activations_of(x),
                           .weight = vector_of<float>(weight),
                           .inverse_rms = vector_of<float>(inverse_rms),
                           .write = write,
                           .dx = activations_of(dx),
                           .dweight = vector_or_null<float>(dweight),
                           .dweight_partial = partial});
}

void CudaOps::rotary(Context& context, TensorView x, ConstTensorView positions, ConstTensorView cos,
                     ConstTensorView sin, RotaryDirection direction) const {
  PERCHERON_CHECK(x.rank() == 3 && x.dim(2) % 2 == 0, describe(x));
  PERCHERON_CHECK(positions.elements() == x.dim(0), describe(positions));
  PERCHERON_CHECK(cos.dim(1) == x.dim(2) / 2 && sin.dim(1) == x.dim(2) / 2, describe(cos));
  cuda::rotary(queue_of(context, {x, positions, cos, sin}), activations_of(x),
               vector_of<int32_t>(positions), vector_of<float>(cos), vector_of<float>(sin),
               direction == RotaryDirection::kForward ? 1.f : -1.f);
}

void CudaOps::swiglu(Context& context, ConstTensorView gate_up, TensorView out) const {
  PERCHERON_CHECK(gate_up.dim(0) == out.dim(0) && gate_up.dim(1) == 2 * out.dim(1), describe(out));
  cuda::swiglu(queue_of(context, {gate_up, out}), activations_of(gate_up), activations_of(out));
}

void CudaOps::swiglu_backward(Context& context, ConstTensorView dout, ConstTensorView gate_up,
                              TensorView dgate_up) const {
  check_same_shape(gate_up, dgate_up);
  PERCHERON_CHECK(gate_up.dim(0) == dout.dim(0) && gate_up.dim(1) == 2 * dout.dim(1),
                  describe(dout));
  cuda::swiglu_backward(queue_of(context, {dout, gate_up, dgate_up}), activations_of(dout),
                        activations_of(gate_up), activations_of(dgate_up));
}

void CudaOps::attention(Context& context, ConstTensorView q, ConstTensorView k, ConstTensorView v,
                        ConstTensorView intervals, float scale, TensorView out,
                        TensorView log_sum_exp) const {
  check_attention_shapes(q, k, v, intervals);
  check_same_shape(q, out);
  check_size_if_present(log_sum_exp, q.dim(0) * q.dim(1));
  cuda::attention(queue_of(context, {q, k, v, intervals, out, log_sum_exp}),
                  {.q = activations_of(q),
                   .k = activations_of(k),
                   .v = activations_of(v),
                   .intervals = vector_of<int32_t>(intervals),
                   .scale = scale,
                   .out = activations_of(out),
                   .log_sum_exp = vector_or_null<float>(log_sum_exp)});
}

void CudaOps::causal_attention(Context& context, ConstTensorView q, ConstTensorView k,
                               ConstTensorView v, const PackedDocuments& documents,
                               ConstTensorView intervals, float scale, TensorView out) const {
  check_attention_shapes(q, k, v, intervals);
  check_same_shape(q, out);
  PERCHERON_CHECK(q.dim(0) == k.dim(0) && documents.offsets.elements() > 0, describe(k));
  static_cast<KernelStream&>(context.stream)
      .check_operands({q, k, v, documents.offsets, intervals, out});
  causal_attention_->run(context,
                         {.q = activations_of(q),
                          .k = activations_of(k),
                          .v = activations_of(v),
                          .intervals = vector_of<int32_t>(intervals),
                          .scale = scale,
                          .out = activations_of(out),
                          .log_sum_exp = nullptr},
                         documents);
}

void CudaOps::attention_backward(Context& context, ConstTensorView dout, ConstTensorView q,
                                 ConstTensorView k, ConstTensorView v, ConstTensorView out,
                                 ConstTensorView log_sum_exp, ConstTensorView intervals,
                                 float scale, TensorView dq, TensorView dk, TensorView dv) const {
  check_attention_shapes(q, k, v, intervals);
  check_attention_gradients(q, k, dout, out, log_sum_exp, dq, dk, dv);
  if (q.elements() == 0) return;
  const Arena::Scope scope(context.arena);
  const TensorView delta = context.arena.take(DType::kF32, {q.dim(0), q.dim(1)});
  const TensorView row_tiles = context.arena.take(DType::kI32, {q.dim(0) + 1, kRowTileInts});
  cuda::attention_backward(
      queue_of(context, {dout, q, k, v, out, log_sum_exp, intervals, dq, dk, dv}),
      {.dout = activations_of(dout),
       .q = activations_of(q),
       .k = activations_of(k),
       .v = activations_of(v),
       .out = activations_of(out),
       .log_sum_exp = vector_of<float>(log_sum_exp),
       .intervals = vector_of<int32_t>(intervals),
       .scale = scale,
       .dq = activations_of(dq),
       .dk = rows_of(dk),
       .dv = rows_of(dv),
       .delta = delta.as<float>(),
       .row_tiles = row_tiles.as<int32_t>()});
}

void CudaOps::cross_entropy(Context& context, TensorView logits, ConstTensorView labels,
                            ConstTensorView weights, Gradient gradient, TensorView loss,
                            TensorView argmax) const {
  PERCHERON_CHECK(labels.elements() == logits.dim(0), describe(labels));
  check_loss(logits, weights, gradient, loss);
  check_size_if_present(argmax, logits.dim(0));
  cuda::cross_entropy(queue_of(context, {logits, labels, weights, loss, argmax}),
                      {.logits = rows_of(logits),
                       .labels = vector_of<int32_t>(labels),
                       .weights = vector_or_null<float>(weights),
                       .gradient = gradient,
                       .loss = vector_of<float>(loss),
                       .argmax = vector_or_null<int32_t>(argmax)});
}

void CudaOps::teacher_loss(Context& context, TeacherLoss kind, TensorView logits,
                           ConstTensorView teacher_logits, ConstTensorView weights,
                           Gradient gradient, TensorView loss, TensorView argmax,
                           TensorView teacher_argmax) const {
  check_same_shape(teacher_logits, logits);
  PERCHERON_CHECK(teacher_logits.dtype() == DType::kF32, describe(teacher_logits));
  check_loss(logits, weights, gradient, loss);
  check_size_if_present(argmax, logits.dim(0));
  check_size_if_present(teacher_argmax, logits.dim(0));
  cuda::teacher_loss(
      queue_of(context, {logits, teacher_logits, weights, loss, argmax, teacher_argmax}),
      {.kind = kind,
       .logits = rows_of(logits),
       .teacher_logits = rows_of(teacher_logits),
       .weights = vector_or_null<float>(weights),
       .gradient = gradient,
       .loss = vector_of<float>(loss),
       .argmax = vector_or_null<int32_t>(argmax),
       .teacher_argmax = vector_or_null<int32_t>(teacher_argmax)});
}

void CudaOps::argmax(Context& context, ConstTensorView x, TensorView out) const {
  PERCHERON_CHECK(x.dtype() == DType::kF32 && out.elements() == x.dim(0), describe(x));
  cuda::argmax(queue_of(context, {x, out}), rows_of(x), vector_of<int32_t>(out));
}

void CudaOps::squared_norm(Context& context, ConstTensorView x, TensorView sum) const {
  PERCHERON_CHECK(sum.dtype() == DType::kF64 && sum.elements() == 1, describe(sum));
  if (x.elements() == 0) return;
  const ConstRows rows = elements_of(x);
  PERCHERON_CHECK(rows.heads == 1, "squared_norm takes vectors and matrices");
  const Arena::Scope scope(context.arena);
  const TensorView partial = context.arena.take(DType::kF64, {squared_norm_blocks(rows)});
  cuda::squared_norm(queue_of(context, {x, sum}), rows, partial.as<double>(), sum.as<double>());
}

void CudaOps::clip_scale(Context& context, ConstTensorView squared_norm, double divisor,
                         double norm_max, TensorView scale) const {
  cuda::clip_scale(queue_of(context, {squared_norm, scale}), vector_of<double>(squared_norm),
                   divisor, norm_max, vector_of<float>(scale));
}

void CudaOps::adamw(Context& context, const AdamWSettings& settings, ConstTensorView scale,
                    ConstTensorView g, TensorView p, TensorView m, TensorView v) const {
  check_same_shape(g, p);
  check_same_shape(g, m);
  check_same_shape(g, v);
  cuda::adamw(queue_of(context, {scale, g, p, m, v}), settings, vector_of<float>(scale),
              vector_of<float>(g), vector_of<float>(p), vector_of<float>(m), vector_of<float>(v),
              g.elements());
}

void CudaOps::axpby(Context& context, float a, ConstTensorView x, float b, TensorView y) const {
  check_same_shape(x, y);
  cuda::axpby(queue_of(context, {x, y}), a, vector_of<float>(x), b, vector_of<float>(y),
              x.elements());
}

void CudaOps::scale_by(Context& context, ConstTensorView factor, TensorView x) const {
  cuda::scale_by(queue_of(context, {factor, x}), vector_of<float>(factor), vector_of<float>(x),
                 x.elements());
}

}  // namespace percheron::cuda
