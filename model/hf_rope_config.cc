#include "model/hf_rope_config.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace percheron {
namespace {

using nlohmann::json;

constexpr double kDefaultTheta = 10000.0;
constexpr double kThetaMax = 1e15;
constexpr double kFactorMax = 1e6;
constexpr int64_t kPositionsMax = int64_t{1} << 30;

constexpr std::pair<std::string_view, RopeType> kRopeTypes[] = {{"default", RopeType::kDefault},
                                                                {"linear", RopeType::kLinear},
                                                                {"dynamic", RopeType::kDynamic},
                                                                {"llama3", RopeType::kLlama3},
                                                                {"yarn", RopeType::kYarn}};

// Rotating only a part of each head is what none of the supported families can do.
void refuse_partial_rotation(ConfigFields& fields) {
  const double share = fields.number("partial_rotary_factor", 0.0, 1.0, 1.0);
  if (fields.status().ok() && share != 1.0) {
    fields.refuse("partial_rotary_factor", "only 1 is supported, every head is rotated whole");
  }
}

RopeType read_type(ConfigFields& rope) {
  const std::string_view key = rope.find("rope_type") != nullptr ? "rope_type" : "type";
  const std::string name = rope.text(key, "default");
  for (const auto& [known, type] : kRopeTypes) {
    if (name == known) return type;
  }
  rope.refuse(key,
              "this rope type is not supported; known are default, linear, dynamic, llama3 and "
              "yarn");
  return RopeType::kDefault;
}

void read_llama3(ConfigFields& rope, RopeConfig& config) {
  config.low_freq_factor = rope.number("low_freq_factor", 1e-6, kFactorMax);
  config.high_freq_factor = rope.number("high_freq_factor", 1e-6, kFactorMax);
  if (rope.status().ok() && config.high_freq_factor <= config.low_freq_factor) {
    rope.refuse("high_freq_factor", "it must be larger than low_freq_factor");
  }
}

void read_yarn(ConfigFields& rope, RopeConfig& config) {
  // A zero counts as absent here, as in transformers.
  const auto nonzero_or = [&](std::string_view key, double fallback) {
    const double value = rope.number(key, 0.0, kFactorMax, fallback);
    return value == 0.0 ? fallback : value;
  };
  config.beta_fast = nonzero_or("beta_fast", 32.0);
  config.beta_slow = nonzero_or("beta_slow", 1.0);
  config.attention_factor = rope.optional_number("attention_factor", 1e-6, kFactorMax);
  config.mscale = rope.optional_number("mscale", 0.0, kFactorMax);
  config.mscale_all_dim = rope.optional_number("mscale_all_dim", 0.0, kFactorMax);
  config.truncate = rope.boolean("truncate", true);
}

}  // namespace

const char* rope_type_name(RopeType type) {
  for (const auto& [name, value] : kRopeTypes) {
    if (value == type) return name.data();
  }
  return "";
}

RopeConfig read_rope_config(ConfigFields& fields, int64_t max_position_embeddings) {
  RopeConfig config;
  refuse_partial_rotation(fields);
  const json* object = fields.find("rope_scaling");
  const bool scaling = object != nullptr && !object->empty();
  const std::string_view key = scaling ? "rope_scaling" : "rope_parameters";
  object = fields.find(key);
  const double top_level_theta = fields.number("rope_theta", 1.0 + 1e-6, kThetaMax, kDefaultTheta);
  if (object == nullptr || object->empty()) {
    config.theta = top_level_theta;
    config.original_max_position_embeddings = max_position_embeddings;
    return config;
  }
  ConfigFields rope(*object, fmt::format("{}: {}", fields.what(), key));
  if (object->is_object()) {
    for (const auto& [name, value] : object->items()) {
      if (value.is_object()) rope.refuse(name, "a rope per kind of layer is not supported");
    }
  }
  refuse_partial_rotation(rope);
  config.type = read_type(rope);
  config.theta = rope.number("rope_theta", 1.0 + 1e-6, kThetaMax, top_level_theta);
  ConfigFields& original =
      fields.find("original_max_position_embeddings") != nullptr ? fields : rope;
  config.original_max_position_embeddings = original.integer(
      "original_max_position_embeddings", 1, kPositionsMax, max_position_embeddings);
  if (config.type != RopeType::kDefault) config.factor = rope.number("factor", 1e-6, kFactorMax);
  if (config.type == RopeType::kLlama3) read_llama3(rope, config);
  if (config.type == RopeType::kYarn) read_yarn(rope, config);
  if (config.type == RopeType::kDynamic && config.factor < 1.0) {
    rope.refuse("factor", "a dynamic rope needs a factor of at least 1");
  }
  fields.fail(rope.status());
  return config;
}

}  // namespace percheron
