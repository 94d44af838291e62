#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "kernels/tensor.h"
#include "model/config.h"

namespace percheron {

class DeviceCollective;

/// A rank's share of a target that several devices hold together. The projections into heads and
/// into the MLP are split by their outputs, those back into the residual stream by their inputs,
/// and what they add is summed over the ranks; embedding and norms are whole on every rank.
/// Source: Shoeybi et al. 2019.
struct TargetShard {
  int rank = 0, size = 1;
  DeviceCollective* collective = nullptr;  // borrowed; null only where size is 1
};

/// How a stored matrix [out, in] or a bias [out] is shared among ranks.
enum class Split { kNone, kOutputs, kInputs };

/// The share of `stored` that belongs to the shard's rank: a view of it, or of `gathered`, which it
/// fills where the share is not contiguous and which must live as long.
ConstTensorView share_of(const ConstTensorView& stored, Split split, const TargetShard& shard,
                         std::vector<std::byte>& gathered);

/// kInvalidArgument names the heads, key/value heads or intermediate size of `config` that `size`
/// ranks can't share evenly.
Status check_tensor_parallel(const ModelConfig& config, int64_t size);

}  // namespace percheron
