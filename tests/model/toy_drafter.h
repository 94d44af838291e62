#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/drafter_config.h"
#include "model/warm_start.h"
#include "tests/model/toy_model.h"

namespace percheron {

/// A tiny target with the states that a drafter of `choice` reads, and that drafter, in f32.
struct ToyPair {
  std::unique_ptr<Target> target;
  std::unique_ptr<Drafter> drafter;
};

/// `target` changes the toy target's config. With `warm` the drafter starts from its target's
/// weights, so that some drafts are accepted; else its matrices are random, five times the usual.
/// A reduced vocabulary is every id that is no multiple of 7, up to choice.draft_vocab_size.
ToyPair make_toy_pair(TestDevice& device, uint64_t seed, DrafterChoice choice,
                      std::span<const WarmStart> warm = {},
                      const nlohmann::json& target = nlohmann::json::object());

TargetParts parts_of(const Target& target);

}  // namespace percheron
