#pragma once

#include <cstdint>

#include "kernels/ops.h"
#include "kernels/rows.h"
#include "kernels/tensor.h"

/// What the operations of the CPU device call: one table of functions per instruction set. Its
/// functions are compiled once per set, from the same sources, with different flags.
///
/// The trap: an inline function of a shared header that is instantiated in a file compiled for
/// AVX-512 can be the copy which the linker keeps for the whole program, and then dies on an older
/// processor. Therefore those sources use plain structs (below), their own namespace and internal
/// linkage, and call nothing inline of another header, of the standard library in particular.
namespace percheron::cpu {

/// Sums over rows are taken over at most this many fixed blocks of rows, then over the blocks in
/// order: the bits do not depend on the number of threads.
constexpr int64_t kRowBlocksMax = 64;
/// Sums over the elements of a vector are taken over blocks of this size.
constexpr int64_t kSumBlockElements = 1 << 16;

/// Which way a weight [out, in] is packed: its rows are the columns of the right-hand side (x W^T),
/// or its columns are (dy W).
enum class PanelColumns { kRowsOfWeight, kColumnsOfWeight };

/// y (+)= x B + bias, with B [x.columns, y.columns] packed in panels.
struct Product {
  ConstRows x;
  const void* panels;
  DType panels_dtype;  // f32 or bf16
  const float* bias;   // or null
  Write write;
  Rows y;
  void* scratch;  // product_scratch_bytes per thread
};

/// dweight += dy^T x.
struct WeightGradient {
  ConstRows dy, x;
  Rows dweight;
  void* scratch;  // product_scratch_bytes per thread
};

struct RmsNormBackward {
  ConstRows dy, x;
  const float* weight;
  const float* inverse_rms;
  Write write;
  Rows dx;
  float* dweight;          // [columns] or null
  float* dweight_partial;  // [kRowBlocksMax, columns] scratch
};

/// Consecutive query rows whose first intervals begin at the same key.
struct RowTile {
  int32_t begin, end;              // rows
  int32_t first_begin, first_end;  // keys of the rows' first intervals
  int32_t second_begin,
      second_end;      // keys from the lowest to the highest of their second intervals
  bool second_shared;  // the second intervals too begin at the same key
};

struct AttentionShape {
  int64_t heads, kv_heads, head_dim;
};

struct Attention {
  ConstRows q, k, v;
  const int32_t* intervals;  // [rows, 4]
  float scale;
  Rows out;
  float* log_sum_exp;  // [rows, heads] or null
  RowTile* tiles;      // room for one per row
  float* scratch;      // attention_scratch_floats per thread
};

struct AttentionBackward {
  ConstRows dout, q, k, v, out;
  const float* log_sum_exp;
  const int32_t* intervals;
  float scale;
  Rows dq, dk, dv;
  float* delta;    // [rows, heads] scratch
  RowTile* tiles;  // room for one per row
  float* scratch;  // attention_backward_scratch_floats per thread
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

  /// Panels of this many columns, the last padded with zeros, each [depth, panel_columns].
  int64_t panel_columns;
  int64_t product_scratch_bytes;
  void (*pack_panels)(const ConstRows& weight, PanelColumns columns, DType dtype, void* panels);
  void (*product)(const Product& a);
  void (*weight_gradient)(const WeightGradient& a);

  /// For few bf16 rows, as in decoding; null where the processor does not multiply bf16. A weight
  /// [columns, depth] of bf16, depth even, is packed into bf16_pairs_bytes; a product has bf16 rows
  /// and these as its panels.
  int64_t (*bf16_pairs_bytes)(int64_t columns, int64_t depth);
  void (*pack_bf16_pairs)(const ConstRows& weight, void* pairs);
  void (*few_bf16_rows_product)(const Product& a);

  /// codes: contiguous [rows, columns], the weight's columns from first_column on.
  void (*quantize_rows)(const ConstRows& weight, int64_t first_column, float* scales,
                        const Rows& codes);
  void (*dequantize_rows)(const ConstRows& codes, const float* scales, const Rows& out);

  void (*rms_norm)(const ConstRows& x, const float* weight, float epsilon, const Rows& out,
                   float* inverse_rms);
  void (*rms_norm_backward)(const RmsNormBackward& a);
  /// sign: 1 rotates forward, -1 back.
  void (*rotary)(const Rows& x, const int32_t* positions, const float* cos, const float* sin,
                 float sign);
  void (*swiglu)(const ConstRows& gate_up, const Rows& out);
  void (*swiglu_backward)(const ConstRows& dout, const ConstRows& gate_up, const Rows& dgate_up);
  int64_t (*attention_scratch_floats)(const AttentionShape& shape);
  void (*attention)(const Attention& a);
  int64_t (*attention_backward_scratch_floats)(const AttentionShape& shape);
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
