#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/device.h"
#include "model/drafter.h"
#include "model/drafter_files.h"
#include "model/target.h"

namespace percheron {

/// Initial values taken from the target; files stay standard.
enum class WarmStart {
  kHead,   // norm, and EAGLE-3's head, from the target's final norm and head
  kFc,     // fc passes the deepest captured state on, beside its small random values
  kLayer,  // attention, MLP and norms from the target's last layers
};

/// What of a drafter got its values from elsewhere, by parameter; what did not, with the reason.
struct InitialValues {
  std::vector<std::string> taken;
  std::vector<std::string> left;  // "NAME: reason"
};

/// Sets parts of a fresh drafter from its target. A layer's weight is left alone where the shapes
/// of the two differ. EAGLE-3: the hidden half of q, k, v, then o, MLP, hidden_norm from
/// input_layernorm, post_attention_layernorm, of the last target layer; q and k only if both or
/// neither have norms per head. DFlash: v, o, MLP and both norms of its L layers from the last L.
Result<InitialValues> warm_start(Context& context, Drafter& drafter, const Target& target,
                                 std::span<const WarmStart> parts);

/// Takes all matching weights of an existing drafter: same name and shape, and for fc the same
/// captured layers, for the head the rows of tokens that both vocabularies have. Other weights
/// stay, the target's embedding too: `left` says if the file's own copy differs from `embedding`
/// ([V, H], the target's, in host memory). kInvalidArgument if it is another kind of drafter or
/// nothing matches. A resumed run is another thing: it continues moments, schedule and data too.
Result<InitialValues> init_from(Context& context, Drafter& drafter, const DrafterFile& file,
                                ConstTensorView embedding);

}  // namespace percheron
