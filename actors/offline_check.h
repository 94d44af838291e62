#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "data/offline_features.h"
#include "kernels/device.h"
#include "model/target.h"

namespace percheron {

/// Every state of the target at the excerpts' rows, [R, layers + 1, H], in their order: one pass.
Result<std::vector<float>> live_states(Context& context, Target& target,
                                       const std::vector<PeerFiles>& files);

/// Compares what peers' files hold with the live target. What to tell when each slot that the run
/// reads is the state that features.from_capture and features.from_last say; kInvalidArgument names
/// the first that isn't, how far off it is, and the state that it is. `files` is not empty.
Result<std::string> check_peer_states(Context& context, Target& target,
                                      const std::vector<PeerFiles>& files);

}  // namespace percheron
