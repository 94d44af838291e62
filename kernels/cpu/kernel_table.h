#pragma once

#include <cstdint>

#include "kernels/ops.h"
#include "kernels/tensor.h"

/// What the operations of the CPU device call: one table of functions per instruction set. Its
/// functions are compiled once per set, from the same sources, with different flags.
///
/// The trap: an inline function of a shared header that is instantiated in a file compiled for
/// AVX-512 can be the copy which the linker keeps for the whole program, and then dies on an older
/// processor. Therefore those sources use plain structs (below), their own namespace and internal
/// linkage, and call nothing inline of another header, of the standard library in particular.
namespace percheron::cpu {

/// rows x heads x columns elements; the last dimension is contiguous, strides in elements. A matrix
/// has one head.
template <class Pointer>
struct BasicRows {
  Pointer data;
  DType dtype;
  int64_t rows, heads, columns;
  int64_t row_stride, head_stride;
};
using Rows = BasicRows<void*>;
using ConstRows = BasicRows<const void*>;

/// Sums over rows are taken over at most this many fixed blocks of rows, then over the blocks in
/// order: the bits do not depend on the number of threads.
constexpr int64_t kRowBlocksMax = 64;
/// Sums over the elements of a vector are taken over blocks of this size.
constexpr int64_t kSumBlockElements = 1 << 16;

struct RmsNormBackward {
  ConstRows dy, x;
  const float* weight;
  const float* inverse_rms;
  Write write;
  Rows dx;
  float* dweight;          // [columns] or null
  float* dweight_partial;  // [kRowBlocksMax, columns] scratch
};

struct Attention {
  ConstRows q, k, v;
  const int32_t* intervals;  // [rows, 4]
  float scale;
  Rows out;
  float* log_sum_exp;  // [rows, heads] or null
};

struct AttentionBackward {
  ConstRows dout, q, k, v, out;
  const float* log_sum_exp;
  const int32_t* intervals;
  float scale;
  Rows dq, dk, dv;
  float* delta;  // [rows, heads] scratch
};

struct TeacherLossRows {
  TeacherLoss kind;
  Rows logits;
  ConstRows teacher_logits;
  const float* weights;  // null without gradient
  Gradient gradient;
  float* loss;
  int32_t* argmax;          // or null
  int32_t* teacher_argmax;  // or null
};

struct KernelTable {
  void (*copy)(const ConstRows& x, const Rows& y);
  void (*add)(const ConstRows& x, const Rows& y);
  void (*gather_rows)(const ConstRows& table, const int32_t* rows, const Rows& out);
  void (*scatter_add_rows)(const ConstRows& x, const int32_t* rows, const Rows& out);
  void (*add_bias)(const float* bias, const Rows& y);
  /// partial: [kRowBlocksMax, columns] scratch.
  void (*column_sum)(const ConstRows& x, float* partial, float* sum);

  void (*rms_norm)(const ConstRows& x, const float* weight, float epsilon, const Rows& out,
                   float* inverse_rms);
  void (*rms_norm_backward)(const RmsNormBackward& a);
  /// sign: 1 rotates forward, -1 back.
  void (*rotary)(const Rows& x, const int32_t* positions, const float* cos, const float* sin,
                 float sign);
  void (*swiglu)(const ConstRows& gate_up, const Rows& out);
  void (*swiglu_backward)(const ConstRows& dout, const ConstRows& gate_up, const Rows& dgate_up);
  void (*attention)(const Attention& a);
  void (*attention_backward)(const AttentionBackward& a);

  void (*cross_entropy)(const Rows& logits, const int32_t* labels, const float* weights,
                        Gradient gradient, float* loss, int32_t* argmax);
  void (*teacher_loss)(const TeacherLossRows& a);
  void (*argmax)(const ConstRows& x, int32_t* out);

  /// partial: one double per block of kSumBlockElements.
  void (*squared_norm)(const ConstRows& x, double* partial, double* sum);
  void (*adamw)(const AdamWSettings& settings, float scale, const float* g, float* p, float* m,
                float* v, int64_t n);
  void (*axpby)(float a, const float* x, float b, float* y, int64_t n);
};

}  // namespace percheron::cpu
