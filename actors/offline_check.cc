#include "actors/offline_check.h"

#include <fmt/format.h>

#include <span>

#include "base/counted.h"
#include "model/parameter_list.h"
#include "model/state_match.h"

namespace percheron {
namespace {

std::string name_of(int64_t state, int64_t layers) {
  if (state > layers) return fmt::format("state {} after the final norm", layers);
  return fmt::format("state {}{}", state, state == layers ? " before the final norm" : "");
}

std::string advice(int64_t stated, int64_t found, int64_t layers) {
  if (found > layers) return "say features.from_last: after_norm of the last slot";
  if (stated > layers && found == layers) return "say features.from_last: before_norm";
  if (stated - found == 1 || found - stated == 1) return "is features.from_capture off by one?";
  return "say in features.from_capture what the slots hold";
}

Status mismatch(const PeerFiles& files, const PeerSlot& slot, const StateMatch& match,
                int64_t layers) {
  const int64_t nearest = match.nearest();
  const std::string where = fmt::format(
      "features.from: {}: slot {} is stated to be {} ({})", files.excerpts.front().path, slot.slot,
      name_of(slot.state, layers), slot.from_last ? "features.from_last" : "features.from_capture");
  if (!match.holds(nearest)) {
    return invalid_argument(fmt::format(
        "{}, but matches no state of the target: it is {:.2g} off, relative to its size, and "
        "{:.2g} "
        "from the nearest, {}: are these the features of another model?",
        where, match.error(slot.state), match.error(nearest), name_of(nearest, layers)));
  }
  return invalid_argument(
      fmt::format("{}, but is {}: it is {:.2g} off, relative to its size, against {:.2g}; {}",
                  where, name_of(nearest, layers), match.error(slot.state), match.error(nearest),
                  advice(slot.state, nearest, layers)));
}

/// The slot that is farthest from its state.
struct Worst {
  double error = -1;
  std::string text;
};

}  // namespace

Result<std::vector<float>> live_states(Context& context, Target& target,
                                       const std::vector<PeerFiles>& files) {
  PackedSequences rows;
  std::vector<int32_t> wanted;
  rows.offsets.push_back(0);
  for (const PeerFiles& directory : files) {
    for (const PeerExcerpt& excerpt : directory.excerpts) {
      for (int64_t row = 0; row < excerpt.rows; ++row) {
        wanted.push_back(rows.offsets.back() + static_cast<int32_t>(row));
      }
      rows.token_ids.insert(rows.token_ids.end(), excerpt.tokens.begin(), excerpt.tokens.end());
      rows.offsets.push_back(static_cast<int32_t>(rows.token_ids.size()));
    }
  }
  return target.all_states(context, rows, wanted);
}

Result<std::string> check_peer_states(Context& context, Target& target,
                                      const std::vector<PeerFiles>& files) {
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<float> norm,
                             to_host<float>(context, target.final_norm()));
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<float> states, live_states(context, target, files));
  const int64_t layers = target.config().num_hidden_layers;
  const size_t hidden = norm.size(), row_values = (static_cast<size_t>(layers) + 1) * hidden;
  size_t first_row = 0, rows = 0;
  int64_t slots = 0;
  Worst worst;
  for (const PeerFiles& directory : files) {
    for (size_t s = 0; s < directory.excerpts.front().slots.size(); ++s) {
      const PeerSlot& slot = directory.excerpts.front().slots[s];
      StateMatch match(layers, norm, target.config().rms_norm_eps);
      rows = 0;
      for (const PeerExcerpt& excerpt : directory.excerpts) {
        const std::span<const float> held = excerpt.slots[s].values;
        for (size_t row = 0; row < static_cast<size_t>(excerpt.rows); ++row, ++rows) {
          match.add_row(std::span(states).subspan((first_row + rows) * row_values, row_values),
                        held.subspan(row * hidden, hidden));
        }
      }
      if (!match.holds(slot.state)) return mismatch(directory, slot, match, layers);
      ++slots;
      if (match.error(slot.state) <= worst.error) continue;
      worst = {match.error(slot.state),
               fmt::format("slot {} of {}", slot.slot, directory.excerpts.front().path)};
    }
    first_row += rows;
  }
  return fmt::format(
      "{} of files without Percheron's metadata {} stated to be, by {}; the worst, {}, is {:.2g} "
      "off, relative to its size",
      counted(slots, "slot"),
      slots == 1 ? "is the target's state that it is" : "are the target's states that they are",
      counted(static_cast<int64_t>(first_row), "row"), worst.text, worst.error);
}

}  // namespace percheron
