#pragma once

#include <cstdint>

#include "kernels/cuda/queue.h"
#include "kernels/ops.h"
#include "kernels/rows.h"

/// What the operations of a CUDA or emulated device put into a queue. Each is compiled from one .cu
/// file, by nvcc for the GPU and by the host's compiler for the emulator. Pointers are device
/// memory; contracts are those of kernels/ops.h, whose checks are done by CudaOps.
namespace percheron::cuda {

// rows.cu
void copy(Queue& queue, const ConstRows& x, const Rows& y);
void add(Queue& queue, const ConstRows& x, const Rows& y);
void fill_zero(Queue& queue, const Rows& x);
void gather_rows(Queue& queue, const ConstRows& table, const int32_t* rows, const Rows& out);
void scatter_add_rows(Queue& queue, const ConstRows& x, const int32_t* rows, const Rows& out);
/// y (+)= x + bias with bias [columns], rounded once. x may be y.
void add_bias(Queue& queue, const ConstRows& x, const float* bias, Write write, const Rows& y);

// quantize.cu
void quantize_rows(Queue& queue, const ConstRows& weight, int64_t first_column, float* scales,
                   const Rows& codes);
void dequantize_rows(Queue& queue, const ConstRows& codes, const float* scales, const Rows& out);

// layers.cu
/// sign: 1 rotates forward, -1 back.
void rotary(Queue& queue, const Rows& x, const int32_t* positions, const float* cos,
            const float* sin, float sign);
void swiglu(Queue& queue, const ConstRows& gate_up, const Rows& out);
void swiglu_backward(Queue& queue, const ConstRows& dout, const ConstRows& gate_up,
                     const Rows& dgate_up);

// rms_norm.cu
void rms_norm(Queue& queue, const ConstRows& x, const float* weight, float epsilon, const Rows& out,
              float* inverse_rms);
/// The weight's gradient is summed over at most this many fixed blocks of rows, then over the
/// blocks in order.
constexpr int64_t kNormBlocksMax = 512;
struct RmsNormBackward {
  ConstRows dy, x;
  const float* weight;
  const float* inverse_rms;
  Write write;
  Rows dx;
  float* dweight;          // [columns] or null
  float* dweight_partial;  // [kNormBlocksMax, columns] scratch, null without dweight
};
void rms_norm_backward(Queue& queue, const RmsNormBackward& a);

// attention.cu
struct Attention {
  ConstRows q, k, v;
  const int32_t* intervals;  // [rows, 4]
  float scale;
  Rows out;
  float* log_sum_exp;  // [rows, heads] or null
};
/// On tensor cores where suits_tensor_cores(), else in f32 for any shape and types.
void attention(Queue& queue, const Attention& a);

// attention_bf16.cu
/// bf16 heads of 64, 96 or 128 whose rows are aligned to 16 bytes, at most 64 to a key head.
bool suits_tensor_cores(const Attention& a);
void attention_bf16(Queue& queue, const Attention& a);

// packed_documents.cu
/// The places of documents as libraries take them: offsets[i][d] = strides[i] * documents[d] and
/// lengths[d], for d < places; those past the last document begin where it ends and are empty.
struct PackedOffsets {
  const int32_t* documents;  // [count + 1]
  int64_t count, places;
  int64_t strides[4];
  int32_t* offsets[4];  // [places]
  int32_t* lengths;     // [places]
};
void packed_offsets(Queue& queue, const PackedOffsets& a);

// attention_backward.cu
/// Scratch of the tensor-core path for each row and one more, in int32s.
constexpr int64_t kRowTileInts = 6;
struct AttentionBackward {
  ConstRows dout, q, k, v, out;
  const float* log_sum_exp;
  const int32_t* intervals;
  float scale;
  Rows dq, dk, dv;
  float* delta;        // [rows, heads] scratch
  int32_t* row_tiles;  // [rows + 1, kRowTileInts] scratch
};
/// On tensor cores where suits_tensor_cores(), else in f32 for any shape and types.
void attention_backward(Queue& queue, const AttentionBackward& a);

// attention_bf16_backward.cu
/// As for Attention, dout's heads too.
bool suits_tensor_cores(const AttentionBackward& a);
/// From a.delta, the sums of dout * out over each head.
void attention_bf16_backward(Queue& queue, const AttentionBackward& a);

// losses.cu
struct CrossEntropy {
  Rows logits;
  const int32_t* labels;
  const float* weights;  // null without gradient
  Gradient gradient;
  float* loss;
  int32_t* argmax;  // or null
};
void cross_entropy(Queue& queue, const CrossEntropy& a);
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
void teacher_loss(Queue& queue, const TeacherLossRows& a);
void argmax(Queue& queue, const ConstRows& x, int32_t* out);

// optimizer.cu
/// Sums of squares are taken over blocks of this size, then over the blocks in order.
constexpr int64_t kSumBlockElements = 1 << 14;
/// How many blocks squared_norm() takes for x: the doubles of its scratch.
int64_t squared_norm_blocks(const ConstRows& x);
void squared_norm(Queue& queue, const ConstRows& x, double* partial, double* sum);
void clip_scale(Queue& queue, const double* squared_norm, double divisor, double norm_max,
                float* scale);
void adamw(Queue& queue, const AdamWSettings& settings, const float* scale, const float* g,
           float* p, float* m, float* v, int64_t n);
void axpby(Queue& queue, float a, const float* x, float b, float* y, int64_t n);
void scale_by(Queue& queue, const float* factor, float* x, int64_t n);

}  // namespace percheron::cuda
