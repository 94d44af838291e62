#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/micro_batch.h"
#include "kernels/tensor.h"

namespace percheron {

/// What a target yields for one micro-batch and a drafter learns from. Immutable once published.
/// The one layout of store, file and wire (docs/formats.md).
struct Features {
  MicroBatch batch;
  DType dtype = DType::kBf16;
  int64_t slots = 0;        // captured states K, plus 1 if the last layer's output is stored
  int64_t hidden_size = 0;  // H
  bool has_last = false;    // the last slot is the last layer's output before the final norm
  std::vector<std::byte> hidden_states;  // [T, slots, H] of dtype
  std::vector<int32_t> top1;  // [T] the target's own next token where the next token is supervised, else -1; or empty
  std::string fingerprint;    // of the run that they were captured for

  ConstTensorView hidden_view() const {
    return ConstTensorView(hidden_states.data(), dtype, {batch.tokens(), slots, hidden_size});
  }
  size_t bytes() const {
    return hidden_states.size() + top1.size() * sizeof(int32_t) + batch.token_ids.size() * 5 +
           batch.offsets.size() * 4 + batch.sample_ids.size() * 8;
  }
};

using FeaturesPtr = std::shared_ptr<const Features>;

}  // namespace percheron
