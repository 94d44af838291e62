#pragma once

#include <cstdint>
#include <memory>

#include "kernels/ops.h"

namespace percheron::cpu {

/// A weight in oneDNN's preferred layout. Owns its memory.
class OneDnnWeight {
 public:
  virtual ~OneDnnWeight() = default;
};

/// Matrix products by oneDNN, for processors that multiply bf16 (AVX-512 BF16, AMX). Both sides are
/// of the one dtype given at construction; sums are f32.
///
/// oneDNN may sum in another order for another number of rows. Rows are therefore taken in chunks
/// of one fixed size, the last one filled up, so that a row's bits do not depend on the others.
/// Thread-safe.
class OneDnnProducts {
 public:
  static constexpr int64_t kChunkRows = 64;
  /// Primitives that are kept. A model has a few per weight.
  static constexpr size_t kPrimitivesMax = 1024;

  /// f32 serves to test this class on any processor.
  explicit OneDnnProducts(DType dtype);
  ~OneDnnProducts();

  /// Memory for the right-hand side B [depth, columns]: W^T (kForward) or W (kBackward) of a weight
  /// [out, in]. Null if oneDNN has no product of this dtype here.
  std::unique_ptr<OneDnnWeight> make_weight(Context& context, int64_t out_features,
                                            int64_t in_features, MatrixUse use);
  /// weight: [out, in] of this dtype, rows possibly strided.
  void pack(Context& context, ConstTensorView weight, OneDnnWeight& packed);
  /// The way back: weight [out, in] of this dtype, contiguous.
  void unpack(const OneDnnWeight& packed, TensorView weight);
  /// y (+)= x B + bias. x: [N, depth] of this dtype; y: [N, columns] f32 or this dtype; bias f32 or
  /// absent.
  void product(Context& context, ConstTensorView x, const OneDnnWeight& weight,
               ConstTensorView bias, Write write, TensorView y);
  /// dweight += dy^T x. dy: [N, out], x: [N, in] of this dtype; dweight: [out, in] f32.
  void weight_gradient(Context& context, ConstTensorView dy, ConstTensorView x, TensorView dweight);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace percheron::cpu
