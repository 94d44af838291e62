#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/random.h"

namespace percheron {

/// Flips, overwrites, inserts, removes, repeats or cuts; digits and JSON marks are likely.
std::string mutate(std::string bytes, Random& random);

/// Mutates `whole` many times and lets `read` try each, until the first failure.
/// PERCHERON_FUZZ_ROUNDS raises the effort, PERCHERON_FUZZ_SEED replays a failure.
void fuzz_bytes(const std::string& whole, const std::function<void(const std::string&)>& read);

}  // namespace percheron
