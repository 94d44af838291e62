#pragma once

#include <span>
#include <vector>

#include "kernels/device.h"
#include "model/config.h"

namespace percheron {

/// Inverse frequencies [head_dim / 2] in double, for a document of `length` tokens (matters to
/// `dynamic` only).
std::vector<double> rope_inverse_frequencies(const RopeConfig& rope, int64_t head_dim,
                                             int64_t max_position_embeddings, int64_t length);
/// The factor on cos and sin (yarn; 1 elsewhere).
double rope_attention_scaling(const RopeConfig& rope);

/// cos and sin tables [rows, head_dim / 2] f32 in device memory, times rope_attention_scaling(),
/// made in double and grown on demand. Not thread-safe.
class RopeTable {
 public:
  RopeTable(Device& device, const RopeConfig& rope, int64_t head_dim,
            int64_t max_position_embeddings);
  /// Tables whose row p is position p, for at least `positions` of them; `dynamic` as in short
  /// documents. The views stay valid until the next call of either function.
  Status reserve(Context& context, int64_t positions);
  /// Tables for documents of these lengths; returns for each the row of its position 0. All zeros,
  /// except that `dynamic` makes a section of its own for every document beyond
  /// max_position_embeddings.
  Result<std::vector<int32_t>> reserve_documents(Context& context,
                                                 std::span<const int64_t> lengths);
  ConstTensorView cos() const { return cos_; }
  ConstTensorView sin() const { return sin_; }

 private:
  // Appends positions 0 .. rows - 1 of a document of `length` tokens to the host tables.
  void append_rows(int64_t rows, int64_t length);
  Status upload(Context& context);

  Device& device_;
  RopeConfig rope_;
  int64_t head_dim_, max_position_embeddings_, positions_ = 0;
  std::vector<float> host_cos_, host_sin_;
  Tensor cos_, sin_;
};

}  // namespace percheron
