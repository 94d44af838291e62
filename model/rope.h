#pragma once

#include <vector>

#include "kernels/device.h"
#include "model/config.h"

namespace percheron {

/// Inverse frequencies [head_dim / 2] in double, for a document of `length` tokens (matters to `dynamic` only).
std::vector<double> rope_inverse_frequencies(const RopeConfig& rope, int64_t head_dim, int64_t max_position_embeddings,
                                             int64_t length);
/// The factor on cos and sin (yarn; 1 elsewhere).
double rope_attention_scaling(const RopeConfig& rope);

/// cos and sin tables [positions, head_dim / 2] f32 in device memory, grown on demand; `dynamic` keeps one table per
/// document length beyond max_position_embeddings.
class RopeTable {
 public:
  RopeTable(Device& device, const RopeConfig& rope, int64_t head_dim, int64_t max_position_embeddings);
  /// Tables with at least `positions` rows. The reference stays valid until the next call.
  Status reserve(Context& context, int64_t positions);
  ConstTensorView cos() const { return cos_; }
  ConstTensorView sin() const { return sin_; }

 private:
  Device& device_;
  RopeConfig rope_;
  int64_t head_dim_, max_position_embeddings_, positions_ = 0;
  Tensor cos_, sin_;
};

}  // namespace percheron
