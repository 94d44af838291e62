#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace percheron {

/// The least number of insertions, deletions, replacements and swaps of neighbouring characters
/// that turn `a` into `b` (optimal string alignment).
size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate that a writer of `name` most likely meant, the first among equals; empty when none
/// is near (over a third of the longer name differs).
std::string_view nearest_name(std::string_view name, std::span<const std::string_view> candidates);

}  // namespace percheron
