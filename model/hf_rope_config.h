#pragma once

#include "model/config.h"
#include "model/config_fields.h"

namespace percheron {

/// Reads the rotary embedding from either spelling of a config: `rope_parameters`, or `rope_theta`
/// with `rope_scaling`. Errors go to `fields`. Precedence as in transformers 5.24:
/// - a non-null `rope_scaling` replaces `rope_parameters` whole, its theta too;
/// - inside one object `rope_theta` beats the top-level key and `rope_type` beats `type`;
/// - a top-level `original_max_position_embeddings` beats the object's; absent in both it is
///   `max_position_embeddings`.
RopeConfig read_rope_config(ConfigFields& fields, int64_t max_position_embeddings);

}  // namespace percheron
