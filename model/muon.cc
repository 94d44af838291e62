#include <algorithm>
#include <cmath>

#include "kernels/ops.h"
#include "model/optimizer.h"

namespace percheron {
namespace {

using Transpose = Ops::Transpose;

// x [rows, columns] becomes nearly orthogonal by Newton-Schulz steps x <- a x + (b G + c G G) x
// with G = x x^T. A tall matrix uses G = x^T x from the right instead, which is the same
// polynomial.
void orthogonalize(Context& context, int steps, TensorView x) {
  constexpr float kA = 3.4445f, kB = -4.775f, kC = 2.0315f;
  const Ops& ops = context.device.ops();
  const bool wide = x.dim(0) <= x.dim(1);
  const int64_t n = std::min(x.dim(0), x.dim(1));
  Arena::Scope scope(context.arena);
  const TensorView gram = context.arena.take(DType::kF32, {n, n});
  const TensorView polynomial = context.arena.take(DType::kF32, {n, n});
  const TensorView next = context.arena.take(DType::kF32, {x.dim(0), x.dim(1)});
  TensorView from = x, to = next;
  for (int i = 0; i < steps; ++i) {
    ops.matmul(context, 1, from, wide ? Transpose::kNo : Transpose::kYes, from,
               wide ? Transpose::kYes : Transpose::kNo, 0, gram);
    ops.copy(context, gram, polynomial);
    ops.matmul(context, kC, gram, Transpose::kNo, gram, Transpose::kNo, kB, polynomial);
    ops.copy(context, from, to);
    ops.matmul(context, 1, wide ? polynomial : from, Transpose::kNo, wide ? from : polynomial,
               Transpose::kNo, kA, to);
    std::swap(from, to);
  }
  if (from.data() != x.data()) ops.copy(context, from, x);
}

double step_scale(MuonScale scale, int64_t rows, int64_t columns) {
  if (scale == MuonScale::kMatchRmsAdamw) {
    return 0.2 * std::sqrt(static_cast<double>(std::max(rows, columns)));
  }
  return std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(columns)));
}

}  // namespace

void muon_update(Context& context, const OptimizerConfig& config, double rate_factor,
                 ConstTensorView scale, ConstTensorView gradient, TensorView value,
                 TensorView momentum) {
  const Ops& ops = context.device.ops();
  const auto keep = static_cast<float>(config.muon_momentum);
  const auto take = static_cast<float>(1 - config.muon_momentum);
  Arena::Scope scope(context.arena);
  const TensorView update = context.arena.take(DType::kF32, {value.dim(0), value.dim(1)});
  ops.copy(context, gradient, update);
  ops.scale_by(context, scale, update);
  ops.axpby(context, take, update, keep, momentum);
  ops.axpby(context, keep, momentum, take, update);  // Nesterov's look ahead

  const TensorView squared_norm = context.arena.take(DType::kF64, {1});
  const TensorView inverse_norm = context.arena.take(DType::kF32, {1});
  ops.fill_zero(context, squared_norm);
  ops.squared_norm(context, update, squared_norm);
  // clip_scale with this divisor is 1 / max(norm, 1e-7), up to 1e-13: torch's guard against zero.
  constexpr double kSmallestNorm = 1e-7;
  ops.clip_scale(context, squared_norm, kSmallestNorm, 1.0, inverse_norm);
  ops.scale_by(context, inverse_norm, update);
  orthogonalize(context, config.newton_schulz_steps, update);

  const double rate = config.muon_learning_rate * rate_factor;
  const double length = rate * step_scale(config.muon_scale, value.dim(0), value.dim(1));
  ops.axpby(context, static_cast<float>(-length), update,
            static_cast<float>(1 - rate * config.muon_weight_decay), value);
}

}  // namespace percheron
