#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/micro_batch.h"
#include "kernels/tensor.h"

namespace percheron {

/// What all features of a run have in common.
struct FeatureShape {
  DType dtype = DType::kBf16;
  int64_t slots = 0;        // captured states K, plus 1 if the last layer's output is stored
  int64_t hidden_size = 0;  // H
  bool has_last = false;    // the last slot is the last layer's output before the final norm
  bool has_top1 = false;

  bool operator==(const FeatureShape&) const = default;
  size_t hidden_bytes(int64_t tokens) const {
    return static_cast<size_t>(tokens * slots * hidden_size) * dtype_bytes(dtype);
  }
  /// Features::bytes() of features that are still to be made, for their reservation.
  size_t bytes(int64_t tokens, int64_t documents) const {
    return hidden_bytes(tokens) + static_cast<size_t>(tokens) * (has_top1 ? 9 : 5) +
           static_cast<size_t>(documents + 1) * 4 + static_cast<size_t>(documents) * 8;
  }
};

/// What a target yields for one micro-batch and a drafter learns from. Immutable once published.
/// The one layout of store, file and wire (docs/formats.md).
struct Features {
  MicroBatch batch;
  DType dtype = DType::kBf16;
  int64_t slots = 0;        // captured states K, plus 1 if the last layer's output is stored
  int64_t hidden_size = 0;  // H
  bool has_last = false;    // the last slot is the last layer's output before the final norm
  std::vector<std::byte> hidden_states;  // [T, slots, H] of dtype
  std::vector<int32_t> top1;  // [T] the target's own next token where the next token is supervised,
                              // else -1; or empty
  std::string fingerprint;    // of the run that they were captured for

  FeatureShape shape() const { return {dtype, slots, hidden_size, has_last, !top1.empty()}; }
  ConstTensorView hidden_view() const {
    return ConstTensorView(hidden_states.data(), dtype, {batch.tokens(), slots, hidden_size});
  }
  size_t bytes() const {
    return hidden_states.size() + top1.size() * sizeof(int32_t) + batch.token_ids.size() * 5 +
           batch.offsets.size() * 4 + batch.sample_ids.size() * 8;
  }
};

using FeaturesPtr = std::shared_ptr<const Features>;

/// The documents of `batch` from two parts of it of one shape, in the order of `batch`; each is
/// found by its sample id, with the part's loss mask. One that is in neither is left out.
Features merge_documents(const MicroBatch& batch, const Features& first, const Features& second);

/// No documents yet, of the slots and type of `features`.
Features empty_like(const Features& features);

/// Puts the documents of `features`, of the same shape, behind those of `all`.
void append_documents(const Features& features, Features& all);

}  // namespace percheron
