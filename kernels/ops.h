#pragma once

#include <cstdint>
#include <memory>

#include "kernels/device.h"
#include "kernels/tensor.h"

namespace percheron {

/// The largest head of attention(), in elements; head sizes are even.
constexpr int64_t kHeadDimMax = 256;
/// The most query heads of attention() that may share a key head.
constexpr int64_t kHeadsPerKeyHeadMax = 256;

/// The end that makes a second interval of attention() say no more than an origin.
constexpr int32_t kOriginOnly = -1;

/// Whether a result replaces what is there or is added to it.
enum class Write { kOverwrite, kAdd };

/// A weight matrix in a device's preferred layout, packed once and used many times.
class PackedMatrix {
 public:
  virtual ~PackedMatrix() = default;
  int64_t out_features = 0;
  int64_t in_features = 0;
};

/// What a packed weight W [out, in] is multiplied with: activations (x W^T) or gradients (dy W).
enum class MatrixUse { kForward, kBackward };

enum class RotaryDirection { kForward, kBackward };

/// Losses between a row of draft logits z and its teacher logits u over the same vocabulary, with
/// q = softmax(z), p = softmax(u). Source: the losses of
/// EAGLE-3 (Li et al. 2025), speculators 0.9.0 and SpecForge 0.2.0, which name them otherwise.
enum class TeacherLoss {
  kSoftCrossEntropy,   // -sum p log q
  kKlDivergence,       // KL(p || q)
  kReverseKl,          // KL(q || p)
  kJensenShannon,      // (KL(p || m) + KL(q || m)) / 2, m = (p + q) / 2
  kTeacherArgmax,      // -log q[argmax u]
  kTotalVariation,     // 1 - sum min(p, q)
  kNegativeLogAccept,  // -log max(sum min(p, q), 1e-5)
  kHybrid,             // lambda KL + (1 - lambda) TV, lambda = exp(-3 sum min(p, q)), detached
};

enum class Gradient { kNone, kInPlace };

/// Documents that follow one another in packed rows: document d is rows [offsets[d], offsets[d +
/// 1]).
struct PackedDocuments {
  ConstTensorView offsets;  // I32 [D + 1], rising from 0 to the rows; a document may be empty
  int64_t longest;          // rows of the longest
};

struct AdamWSettings {
  float learning_rate, beta1, beta2, epsilon, weight_decay;
  int64_t step;  // counted from 1
};

/// The contract between mathematics and devices: every operation a model needs. One implementation
/// per device; all agree within the bounds of their dtypes.
///
/// Common rules. Activations are f32 or bf16; statistics, softmax and accumulation are f32. Rows
/// are packed tokens [N, ...]: there is no batch dimension and no padding. Operations go into the
/// stream of `context`, take scratch from its arena, and neither wait nor allocate in the steady
/// state. Operands do not overlap unless their operation says so. Shapes and dtypes that disagree
/// are a bug (PERCHERON_CHECK): callers validate what users give. A device's error is kept by the
/// stream; scratch that can't be had ends the process (see Arena). Same inputs and same number of
/// threads give the same bits.
class Ops {
 public:
  virtual ~Ops() = default;

  // --- Moving data -----------------------------------------------------------------------------

  /// Copies [N, C] or [N] with conversion between f32, bf16 and f16; views may be strided.
  virtual void copy(Context& context, ConstTensorView source, TensorView destination) const = 0;
  /// x = 0, of any dtype; a view of rank 1 to 3 may be strided, a contiguous one has any rank.
  virtual void fill_zero(Context& context, TensorView x) const = 0;
  /// y += x. Of one shape, [N, C] or [N], f32, bf16 or f16 each; views may be strided.
  virtual void add(Context& context, ConstTensorView x, TensorView y) const = 0;
  /// out[r] = table[rows[r]]; a negative index gives a zero row. table: [V, C]; rows: I32 [R];
  /// out: [R, C], f32 or bf16, converted. This is also the embedding.
  virtual void gather_rows(Context& context, ConstTensorView table, ConstTensorView rows,
                           TensorView out) const = 0;
  /// out[rows[r]] += x[r] for the non-negative, distinct indices. x: [R, C]; out: [N, C] f32.
  virtual void scatter_add_rows(Context& context, ConstTensorView x, ConstTensorView rows,
                                TensorView out) const = 0;

  // --- Matrix products -------------------------------------------------------------------------

  /// Memory for a packed [out, in] weight, never null. `dtype`: f32 or bf16, what products will be
  /// computed in; bf16 falls back to f32 on a device without native bf16. Without the memory the
  /// stream keeps kResourceExhausted, and operations on the weight do nothing.
  virtual std::unique_ptr<PackedMatrix> make_packed(Context& context, int64_t out_features,
                                                    int64_t in_features, DType dtype,
                                                    MatrixUse use) const = 0;
  /// Fills `packed` from weight [out, in], f32, bf16 or f16, rows possibly strided.
  virtual void pack(Context& context, ConstTensorView weight, PackedMatrix& packed) const = 0;
  /// Rows of 8 bits with a scale each: weight[r, first_column + c] is about scales[r] * codes[r,
  /// c]. scales[r] = the row's largest size, over all C columns, divided by the largest code (127
  /// or 448), or 1 where that is 0; codes are weight / scale in f32, rounded to nearest even and no
  /// larger than the largest. weight: [R, C] f32, bf16 or f16, finite; scales: [R] f32; codes: [R,
  /// columns], kI8 or kF8E4m3, first_column + columns <= C.
  virtual void quantize_rows(Context& context, ConstTensorView weight, int64_t first_column,
                             TensorView scales, TensorView codes) const = 0;
  /// Fills `packed` from the weight [out, in] that quantize_rows() left: scales[r] * codes[r, c] in
  /// f32, rounded once to the dtype of the products. The two codes of kF8E4m3 that are no numbers
  /// stay none. codes: [out, in], contiguous; scales: [out] f32.
  virtual void pack_quantized(Context& context, ConstTensorView codes, ConstTensorView scales,
                              PackedMatrix& packed) const = 0;
  /// y (+)= x W^T + bias. x: [N, in]; y: [N, out]; bias: [out] f32 or absent. W packed kForward.
  virtual void linear(Context& context, ConstTensorView x, const PackedMatrix& weight,
                      ConstTensorView bias, Write write, TensorView y) const = 0;
  /// dx (+)= dy W. dy: [N, out]; dx: [N, in]. W packed kBackward.
  virtual void linear_backward_input(Context& context, ConstTensorView dy,
                                     const PackedMatrix& weight, Write write,
                                     TensorView dx) const = 0;
  /// dweight += dy^T x. dy: [N, out]; x: [N, in]; dweight: [out, in] f32, rows possibly strided.
  virtual void linear_backward_weight(Context& context, ConstTensorView dy, ConstTensorView x,
                                      TensorView dweight) const = 0;
  /// c = alpha op(a) op(b) + beta c, all f32 and contiguous, unpacked; for optimizers. op(a):
  /// [M, K], op(b): [K, N], transposed where asked for; c: [M, N], not read where beta is 0.
  enum class Transpose { kNo, kYes };
  virtual void matmul(Context& context, float alpha, ConstTensorView a, Transpose transpose_a,
                      ConstTensorView b, Transpose transpose_b, float beta, TensorView c) const = 0;

  // --- Transformer layers ----------------------------------------------------------------------

  /// Scales each row to unit root mean square, rounds to out's dtype, then multiplies by `weight`.
  /// x, out: [N, C] or [N, heads, C] (a norm per head), may alias. weight: [C] f32.
  /// inverse_rms: [N] or [N, heads] f32, kept for the backward pass, or absent.
  /// Source: Zhang and Sennrich 2019, eps under the root.
  virtual void rms_norm(Context& context, ConstTensorView x, ConstTensorView weight, float epsilon,
                        TensorView out, TensorView inverse_rms) const = 0;
  /// dx (+)= the input's gradient; dweight += the weight's (absent: not wanted). dx may alias dy.
  virtual void rms_norm_backward(Context& context, ConstTensorView dy, ConstTensorView x,
                                 ConstTensorView weight, ConstTensorView inverse_rms, Write write,
                                 TensorView dx, TensorView dweight) const = 0;
  /// Rotates pairs (i, i + head_dim / 2) of x [N, heads, head_dim] in place by the angle of
  /// positions[n]. cos, sin: [P, head_dim / 2] f32; positions: I32 [N], each < P.
  /// Source: Su et al. 2021, the rotate-half layout of Hugging Face.
  virtual void rotary(Context& context, TensorView x, ConstTensorView positions,
                      ConstTensorView cos, ConstTensorView sin,
                      RotaryDirection direction) const = 0;
  /// out = silu(gate) * up. gate_up: [N, 2 I], gate first; out: [N, I].
  virtual void swiglu(Context& context, ConstTensorView gate_up, TensorView out) const = 0;
  /// dgate_up is overwritten with the gradient of gate_up. dout: [N, I]; gate_up, dgate_up:
  /// [N, 2 I].
  virtual void swiglu_backward(Context& context, ConstTensorView dout, ConstTensorView gate_up,
                               TensorView dgate_up) const = 0;
  /// softmax(scale q k^T + mask) v with one mask for everything: query row n sees the keys of two
  /// half-open intervals, intervals[n] = {b0, e0, b1, e1}, I32 [N, 4]; empty when b >= e; the two
  /// are disjoint. A row that sees nothing gives zeros. Tiles that no row sees are skipped. An
  /// empty second interval {o, kOriginOnly}, o <= b0, changes no result but its rounding: devices
  /// may count the row's tiles of keys from o, so that rows of a sliding window share tiles. q,
  /// out: [N, heads, D], D even and at most kHeadDimMax; k, v: [S, kv_heads, D] of one dtype; query
  /// head h uses key head h / (heads / kv_heads), which at most kHeadsPerKeyHeadMax share.
  /// log_sum_exp: [N, heads] f32 (natural logarithm of the scaled scores' sum), or absent.
  /// Source: Dao et al. 2022.
  virtual void attention(Context& context, ConstTensorView q, ConstTensorView k, ConstTensorView v,
                         ConstTensorView intervals, float scale, TensorView out,
                         TensorView log_sum_exp) const = 0;
  /// attention() where q, k, v and out are the same N rows and each row sees its own document up to
  /// itself, which `intervals` must say too. Devices that have another kernel for this may use it,
  /// as their DeviceOptions say; then results agree within the dtype's bounds.
  virtual void causal_attention(Context& context, ConstTensorView q, ConstTensorView k,
                                ConstTensorView v, const PackedDocuments& documents,
                                ConstTensorView intervals, float scale, TensorView out) const {
    (void)documents;
    attention(context, q, k, v, intervals, scale, out, {});
  }
  /// The gradients of attention() from its inputs and outputs. dq [N, heads, D] is overwritten; dk
  /// and dv [S, kv_heads, D] f32 are added to: several calls may share keys. q, out and dout
  /// [N, heads, D] have one dtype, log_sum_exp is attention()'s.
  virtual void attention_backward(Context& context, ConstTensorView dout, ConstTensorView q,
                                  ConstTensorView k, ConstTensorView v, ConstTensorView out,
                                  ConstTensorView log_sum_exp, ConstTensorView intervals,
                                  float scale, TensorView dq, TensorView dk,
                                  TensorView dv) const = 0;

  // --- Losses over chunks of logits ------------------------------------------------------------

  /// loss[r] = -log softmax(logits[r])[labels[r]], not weighted. With Gradient::kInPlace, logits
  /// become weights[r] (softmax - onehot). A label outside [0, V) is no label: loss and gradient of
  /// its row are 0. logits: [R, V] f32; labels: I32 [R]; loss: [R] f32; weights: [R] f32, absent
  /// only with kNone; argmax: I32 [R] (lowest index on a tie), or absent.
  virtual void cross_entropy(Context& context, TensorView logits, ConstTensorView labels,
                             ConstTensorView weights, Gradient gradient, TensorView loss,
                             TensorView argmax) const = 0;
  /// loss[r] = the chosen loss, not weighted; with kInPlace logits become weights[r] dloss/dz.
  /// logits: [R, V] f32; teacher_logits: [R, V] f32, left unchanged; loss: [R] f32; weights: [R]
  /// f32, absent only with kNone; argmax, teacher_argmax: I32 [R] (lowest index on a tie), or
  /// absent.
  virtual void teacher_loss(Context& context, TeacherLoss kind, TensorView logits,
                            ConstTensorView teacher_logits, ConstTensorView weights,
                            Gradient gradient, TensorView loss, TensorView argmax,
                            TensorView teacher_argmax) const = 0;
  /// out[r] = index of the largest of x[r], the lowest on a tie. x: [R, V] f32; out: I32 [R].
  virtual void argmax(Context& context, ConstTensorView x, TensorView out) const = 0;

  // --- Optimizers ------------------------------------------------------------------------------

  /// sum[0] += the sum of squares of x; sum: [1] f64.
  virtual void squared_norm(Context& context, ConstTensorView x, TensorView sum) const = 0;
  /// scale[0] = min(1, norm_max / (norm + 1e-6)) / divisor with norm = sqrt(squared_norm) /
  /// divisor: one factor that averages summed gradients and clips them. norm_max 0 means no
  /// clipping. scale: [1] f32.
  virtual void clip_scale(Context& context, ConstTensorView squared_norm, double divisor,
                          double norm_max, TensorView scale) const = 0;
  /// One AdamW update with gradient scale[0] * g. All f32, contiguous. Source: Loshchilov and
  /// Hutter 2019, as torch.optim.AdamW: eps outside the root, decay by learning_rate *
  /// weight_decay.
  virtual void adamw(Context& context, const AdamWSettings& settings, ConstTensorView scale,
                     ConstTensorView g, TensorView p, TensorView m, TensorView v) const = 0;
  /// y = a x + b y, f32; for optimizers composed of simple passes.
  virtual void axpby(Context& context, float a, ConstTensorView x, float b, TensorView y) const = 0;
  /// x *= factor[0]. factor: [1] f32.
  virtual void scale_by(Context& context, ConstTensorView factor, TensorView x) const = 0;
};

}  // namespace percheron
