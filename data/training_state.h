#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "data/fingerprint.h"
#include "proto/checkpoint.pb.h"

namespace percheron {

/// Where a checkpoint keeps the run's state, as protobuf text.
inline constexpr const char* kTrainingStateFile = "training_state/training_state.textproto";

std::string training_state_text(const proto::TrainingState& state);

/// kDataLoss names `where`, the line and what is wrong: bad text, unknown or missing fields, a
/// cursor that no run can have.
Result<proto::TrainingState> parse_training_state(std::string_view text, std::string_view where);

void set_fingerprint(const Fingerprint& fingerprint, proto::TrainingState& state);
Fingerprint fingerprint_of(const proto::TrainingState& state);

}  // namespace percheron
