#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/device_health.h"

namespace percheron {

/// What `percheron inspect --devices` prints, without line ends: cpu:0 and each device cuda:N, or
/// why there is none, then each card's state, or why it is not known.
std::vector<std::string> device_lines(const Result<std::unique_ptr<HealthMonitor>>& monitor);

/// The devices of this machine as JSON, without the cards' state: what a node asks for when it
/// starts.
nlohmann::ordered_json devices_json();

/// "card 0: NVIDIA H200 (GPU-1234), 37 % busy, ..."; what the card does not tell is named last.
std::string card_line(size_t index, const Card& card, const Result<CardHealth>& health);

}  // namespace percheron
