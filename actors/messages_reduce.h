#pragma once

// What the actors of one run tell each other about sums that begin before a step is computed.

#include <cstdint>
#include <tuple>

#include "actors/compat.h"

namespace percheron {

/// Mailbox to the members, where they sum between their devices: every micro-batch of the step is
/// handed out, so that those which a trainer was given before this message are its last. Told again
/// with a later group, after more tickets, when it did not hold.
struct LastHandedOut {
  int64_t step = 0;
  int64_t membership = 0;
  int64_t group = 0;  // who sum together
};

inline auto fields_of(LastHandedOut& x) { return std::tie(x.step, x.membership, x.group); }

PERCHERON_MESSAGE(LastHandedOut)

}  // namespace percheron

CAF_BEGIN_TYPE_ID_BLOCK(percheron_reduce, caf::first_custom_type_id + 100)
CAF_ADD_TYPE_ID(percheron_reduce, (percheron::LastHandedOut))
CAF_END_TYPE_ID_BLOCK(percheron_reduce)
