#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "model/generation.h"

namespace percheron {

/// The line protocol of `percheron answer`, which `percheron regenerate` starts: one JSON object a
/// line, prompts on standard input, answers on standard output as they finish.
///
///     (first)                                           {"ready": true, "weights_hash": "...",
///                                                        "context_max": 8192, "capacity": 64}
///     {"id": 7, "sample_key": 3, "prompt": [5, 6]}   -> {"id": 7, "tokens": [8, 2],
///                                                        "stopped": true}
///                                                    or {"id": 7, "refused": "prompt_too_long",
///                                                        "detail": "..."}
///     (what ends the program)                           {"error": "..."}
///
/// `stopped` false: a limit cut the answer. `capacity`: answers in flight at once.
Result<GenerationRequest> parse_request(std::string_view line);

std::string ready_line(const std::string& weights_hash, int64_t context_max, int64_t capacity);
std::string answer_line(uint64_t id, const Generated& answer);
std::string refusal_line(uint64_t id, const Status& why);
std::string error_line(const Status& error);

}  // namespace percheron
