#pragma once

#include <string>
#include <string_view>

namespace percheron {

/// What a key of SpecForge, speculators, TorchSpec or Model-Optimizer is called here, or "" if
/// `key` is none of theirs. Other names are refused, not accepted: two spellings of one thing is
/// how settings get lost.
std::string_view our_spelling_of(std::string_view key);

}  // namespace percheron
