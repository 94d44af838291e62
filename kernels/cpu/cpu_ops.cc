#include "kernels/cpu/cpu_ops.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/shapes.h"

namespace percheron::cpu {
namespace {

RowTile* take_tiles(Context& context, int64_t rows) {
  const int64_t bytes = rows * static_cast<int64_t>(sizeof(RowTile));
  return static_cast<RowTile*>(context.arena.take(DType::kU8, {bytes}).data());
}

float* take_per_thread(Context& context, int64_t floats) {
  return context.arena.take(DType::kF32, {omp_get_max_threads(), floats}).as<float>();
}

}  // namespace

void CpuOps::copy(Context&, ConstTensorView source, TensorView destination) const {
  check_same_shape(source, destination);
  if (source.elements() == 0) return;
  if (source.contiguous() && destination.contiguous()) {
    kernels_.copy(elements_of(source), elements_of(destination));
  } else {
    kernels_.copy(floats_of(source), floats_of(destination));
  }
}

void CpuOps::fill_zero(Context&, TensorView x) const {
  if (x.contiguous()) {
    if (x.bytes() > 0) std::memset(x.data(), 0, x.bytes());
    return;
  }
  const Rows rows = rows_of(x);
  const size_t bytes = dtype_bytes(x.dtype());
  for (int64_t r = 0; r < rows.rows; ++r) {
    for (int64_t h = 0; h < rows.heads; ++h) {
      std::memset(static_cast<char*>(rows.data) +
                      (r * rows.row_stride + h * rows.head_stride) * static_cast<int64_t>(bytes),
                  0, static_cast<size_t>(rows.columns) * bytes);
    }
  }
}

void CpuOps::add(Context&, ConstTensorView x, TensorView y) const {
  check_same_shape(x, y);
  if (x.elements() == 0) return;
  if (x.contiguous() && y.contiguous()) {
    kernels_.add(elements_of(x), elements_of(y));
  } else {
    kernels_.add(floats_of(x), floats_of(y));
  }
}

void CpuOps::gather_rows(Context&, ConstTensorView table, ConstTensorView rows,
                         TensorView out) const {
  PERCHERON_CHECK(out.dim(0) == rows.elements() && out.dim(1) == table.dim(1), describe(out));
  kernels_.gather_rows(floats_of(table), vector_of<int32_t>(rows), activations_of(out));
}

void CpuOps::scatter_add_rows(Context&, ConstTensorView x, ConstTensorView rows,
                              TensorView out) const {
  PERCHERON_CHECK(x.dim(0) == rows.elements() && x.dim(1) == out.dim(1), describe(x));
  PERCHERON_CHECK(out.dtype() == DType::kF32, describe(out));
  kernels_.scatter_add_rows(activations_of(x), vector_of<int32_t>(rows), rows_of(out));
}

void CpuOps::rms_norm(Context&, ConstTensorView x, ConstTensorView weight, float epsilon,
                      TensorView out, TensorView inverse_rms) const {
  check_same_shape(x, out);
  PERCHERON_CHECK(weight.elements() == x.dim(-1), describe(weight));
  kernels_.rms_norm(activations_of(x), vector_of<float>(weight), epsilon, activations_of(out),
                    vector_or_null<float>(inverse_rms));
}

void CpuOps::rms_norm_backward(Context& context, ConstTensorView dy, ConstTensorView x,
                               ConstTensorView weight, ConstTensorView inverse_rms, Write write,
                               TensorView dx, TensorView dweight) const {
  check_same_shape(x, dy);
  check_same_shape(x, dx);
  if (x.elements() == 0) return;
  Arena::Scope scope(context.arena);
  float* partial = nullptr;
  if (dweight.present()) {
    partial = context.arena.take(DType::kF32, {kRowBlocksMax, x.dim(-1)}).as<float>();
  }
  kernels_.rms_norm_backward({.dy = activations_of(dy),
                              .x = activations_of(x),
                              .weight = vector_of<float>(weight),
                              .inverse_rms = vector_of<float>(inverse_rms),
                              .write = write,
                              .dx = activations_of(dx),
                              .dweight = vector_or_null<float>(dweight),
                              .dweight_partial = partial});
}

void CpuOps::rotary(Context&, TensorView x, ConstTensorView positions, ConstTensorView cos,
                    ConstTensorView sin, RotaryDirection direction) const {
  PERCHERON_CHECK(x.rank() == 3 && x.dim(2) % 2 == 0, describe(x));
  PERCHERON_CHECK(positions.elements() == x.dim(0), describe(positions));
  PERCHERON_CHECK(cos.dim(1) == x.dim(2) / 2 && sin.dim(1) == x.dim(2) / 2, describe(cos));
  kernels_.rotary(activations_of(x), vector_of<int32_t>(positions), vector_of<float>(cos),
                  vector_of<float>(sin), direction == RotaryDirection::kForward ? 1.f : -1.f);
}

void CpuOps::swiglu(Context&, ConstTensorView gate_up, TensorView out) const {
  PERCHERON_CHECK(gate_up.dim(0) == out.dim(0) && gate_up.dim(1) == 2 * out.dim(1), describe(out));
  kernels_.swiglu(activations_of(gate_up), activations_of(out));
}

void CpuOps::swiglu_backward(Context&, ConstTensorView dout, ConstTensorView gate_up,
                             TensorView dgate_up) const {
  check_same_shape(gate_up, dgate_up);
  PERCHERON_CHECK(gate_up.dim(0) == dout.dim(0) && gate_up.dim(1) == 2 * dout.dim(1),
                  describe(dout));
  kernels_.swiglu_backward(activations_of(dout), activations_of(gate_up), activations_of(dgate_up));
}

void CpuOps::attention(Context& context, ConstTensorView q, ConstTensorView k, ConstTensorView v,
                       ConstTensorView intervals, float scale, TensorView out,
                       TensorView log_sum_exp) const {
  check_attention_shapes(q, k, v, intervals);
  check_same_shape(q, out);
  check_size_if_present(log_sum_exp, q.dim(0) * q.dim(1));
  if (q.elements() == 0) return;
  Arena::Scope scope(context.arena);
  const int64_t scratch = kernels_.attention_scratch_floats({q.dim(1), k.dim(1), q.dim(2)});
  kernels_.attention({.q = activations_of(q),
                      .k = activations_of(k),
                      .v = activations_of(v),
                      .intervals = vector_of<int32_t>(intervals),
                      .scale = scale,
                      .out = activations_of(out),
                      .log_sum_exp = vector_or_null<float>(log_sum_exp),
                      .tiles = take_tiles(context, q.dim(0)),
                      .scratch = take_per_thread(context, scratch)});
}

void CpuOps::attention_backward(Context& context, ConstTensorView dout, ConstTensorView q,
                                ConstTensorView k, ConstTensorView v, ConstTensorView out,
                                ConstTensorView log_sum_exp, ConstTensorView intervals, float scale,
                                TensorView dq, TensorView dk, TensorView dv) const {
  check_attention_shapes(q, k, v, intervals);
  check_attention_gradients(q, k, dout, out, log_sum_exp, dq, dk, dv);
  if (q.elements() == 0) return;
  Arena::Scope scope(context.arena);
  const TensorView delta = context.arena.take(DType::kF32, {q.dim(0), q.dim(1)});
  const int64_t scratch =
      kernels_.attention_backward_scratch_floats({q.dim(1), k.dim(1), q.dim(2)});
  kernels_.attention_backward({.dout = activations_of(dout),
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
                               .tiles = take_tiles(context, q.dim(0)),
                               .scratch = take_per_thread(context, scratch)});
}

void CpuOps::cross_entropy(Context&, TensorView logits, ConstTensorView labels,
                           ConstTensorView weights, Gradient gradient, TensorView loss,
                           TensorView argmax) const {
  PERCHERON_CHECK(labels.elements() == logits.dim(0), describe(labels));
  check_loss(logits, weights, gradient, loss);
  check_size_if_present(argmax, logits.dim(0));
  kernels_.cross_entropy(rows_of(logits), vector_of<int32_t>(labels),
                         vector_or_null<float>(weights), gradient, vector_of<float>(loss),
                         vector_or_null<int32_t>(argmax));
}

void CpuOps::teacher_loss(Context&, TeacherLoss kind, TensorView logits,
                          ConstTensorView teacher_logits, ConstTensorView weights,
                          Gradient gradient, TensorView loss, TensorView argmax,
                          TensorView teacher_argmax) const {
  check_same_shape(teacher_logits, logits);
  PERCHERON_CHECK(teacher_logits.dtype() == DType::kF32, describe(teacher_logits));
  check_loss(logits, weights, gradient, loss);
  check_size_if_present(argmax, logits.dim(0));
  check_size_if_present(teacher_argmax, logits.dim(0));
  kernels_.teacher_loss({.kind = kind,
                         .logits = rows_of(logits),
                         .teacher_logits = rows_of(teacher_logits),
                         .weights = vector_or_null<float>(weights),
                         .gradient = gradient,
                         .loss = vector_of<float>(loss),
                         .argmax = vector_or_null<int32_t>(argmax),
                         .teacher_argmax = vector_or_null<int32_t>(teacher_argmax)});
}

void CpuOps::argmax(Context&, ConstTensorView x, TensorView out) const {
  PERCHERON_CHECK(x.dtype() == DType::kF32 && out.elements() == x.dim(0), describe(x));
  kernels_.argmax(rows_of(x), vector_of<int32_t>(out));
}

void CpuOps::squared_norm(Context& context, ConstTensorView x, TensorView sum) const {
  PERCHERON_CHECK(sum.dtype() == DType::kF64 && sum.elements() == 1, describe(sum));
  if (x.elements() == 0) return;
  const ConstRows rows = elements_of(x);
  PERCHERON_CHECK(rows.heads == 1, "squared_norm takes vectors and matrices");
  const int64_t blocks = rows.rows * ((rows.columns + kSumBlockElements - 1) / kSumBlockElements);
  Arena::Scope scope(context.arena);
  const TensorView partial = context.arena.take(DType::kF64, {blocks});
  kernels_.squared_norm(rows, partial.as<double>(), sum.as<double>());
}

void CpuOps::clip_scale(Context&, ConstTensorView squared_norm, double divisor, double norm_max,
                        TensorView scale) const {
  const double norm = std::sqrt(*squared_norm.as<double>()) / divisor;
  const double clip = norm_max > 0 ? std::min(1.0, norm_max / (norm + 1e-6)) : 1.0;
  *scale.as<float>() = static_cast<float>(clip / divisor);
}

void CpuOps::adamw(Context&, const AdamWSettings& settings, ConstTensorView scale,
                   ConstTensorView g, TensorView p, TensorView m, TensorView v) const {
  check_same_shape(g, p);
  check_same_shape(g, m);
  check_same_shape(g, v);
  kernels_.adamw(settings, *scale.as<float>(), vector_of<float>(g), vector_of<float>(p),
                 vector_of<float>(m), vector_of<float>(v), g.elements());
}

void CpuOps::axpby(Context&, float a, ConstTensorView x, float b, TensorView y) const {
  check_same_shape(x, y);
  kernels_.axpby(a, vector_of<float>(x), b, vector_of<float>(y), x.elements());
}

void CpuOps::scale_by(Context&, ConstTensorView factor, TensorView x) const {
  kernels_.axpby(*factor.as<float>(), vector_of<float>(x), 0.f, vector_of<float>(x), x.elements());
}

}  // namespace percheron::cpu
