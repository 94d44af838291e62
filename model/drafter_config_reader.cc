#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "model/config_fields.h"
#include "model/drafter_config.h"
#include "model/hf_rope_config.h"

namespace percheron {
namespace {

using nlohmann::json;

constexpr int64_t kSizeMax = int64_t{1} << 24;
constexpr int64_t kLayersMax = 1024;
constexpr int64_t kPositionsMax = int64_t{1} << 30;

/// One place where a file may list the captured layers, and what to add to make j of it.
struct CaptureSpelling {
  std::string_view object;  // empty: top level
  std::string_view key;
  int64_t offset;
};
constexpr std::array<CaptureSpelling, 6> kCaptureSpellings = {{
    {"", "eagle_aux_hidden_state_layer_ids", 0},
    {"", "aux_hidden_state_layer_ids", 0},
    {"eagle_config", "eagle_aux_hidden_state_layer_ids", 1},
    {"eagle_config", "layer_ids", 0},
    {"dflash_config", "target_layer_ids", 1},
    {"", "target_layer_ids", 1},
}};

const json& object_or_empty(ConfigFields& fields, std::string_view key) {
  static const json empty = json::object();
  const json* found = fields.find(key);
  if (found == nullptr) return empty;
  if (!found->is_object()) fields.refuse(key, "it must be an object");
  return found->is_object() ? *found : empty;
}

// Every spelling that is there must say the same: engines each read another one.
std::vector<int64_t> read_capture(ConfigFields& fields, const json& top) {
  std::vector<int64_t> capture;
  std::string first;
  for (const CaptureSpelling& spelling : kCaptureSpellings) {
    const json& object = spelling.object.empty() ? top : object_or_empty(fields, spelling.object);
    const auto found = object.find(spelling.key);
    if (found == object.end() || found->is_null()) continue;
    const std::string name = spelling.object.empty()
                                 ? std::string(spelling.key)
                                 : fmt::format("{}.{}", spelling.object, spelling.key);
    Result<std::vector<int64_t>> ids =
        json_get<std::vector<int64_t>>(object, spelling.key, fields.what());
    if (!ids.ok()) {
      fields.fail(ids.status());
      return {};
    }
    for (int64_t& id : *ids) {
      if (id < -1 || id > kLayersMax) {
        fields.fail(
            invalid_argument(fmt::format("{}: \"{}\" names layer {}", fields.what(), name, id)));
        return {};
      }
      id += spelling.offset;
    }
    if (ids->empty())
      fields.fail(invalid_argument(fmt::format("{}: \"{}\" is empty", fields.what(), name)));
    if (!first.empty() && *ids != capture) {
      fields.fail(invalid_argument(fmt::format(
          "{}: \"{}\" and \"{}\" mean different layers, [{}] and [{}] counted as states "
          "after a layer",
          fields.what(), first, name, fmt::join(capture, ", "), fmt::join(*ids, ", "))));
    }
    if (first.empty()) {
      capture = *std::move(ids);
      first = name;
    }
  }
  return capture;
}

void read_sliding_window(ConfigFields& fields, ModelConfig& body) {
  const auto layers = static_cast<size_t>(body.num_hidden_layers);
  body.sliding_window.assign(layers, 0);
  const int64_t window = fields.integer("sliding_window", 0, kPositionsMax, 0);
  const std::vector<std::string> types = fields.texts("layer_types");
  if (types.empty()) {
    const int64_t full = fields.integer("max_window_layers", 0, kLayersMax, 0);
    if (!fields.boolean("use_sliding_window", false) || window == 0) return;
    for (size_t i = static_cast<size_t>(full); i < layers; ++i) body.sliding_window[i] = window;
    return;
  }
  if (types.size() != layers) {
    fields.refuse("layer_types", fmt::format("{} layers need as many entries", layers));
    return;
  }
  for (size_t i = 0; i < layers; ++i) {
    if (types[i] == "full_attention") continue;
    if (types[i] != "sliding_attention") {
      fields.refuse("layer_types", "known are full_attention and sliding_attention");
    } else if (window == 0) {
      fields.refuse("sliding_window", "sliding_attention layers need it");
    }
    body.sliding_window[i] = window;
  }
}

void refuse_what_changes_the_layers(ConfigFields& fields) {
  for (const std::string_view key : {"attention_bias", "mlp_bias"}) {
    if (fields.boolean(key, false)) fields.refuse(key, "drafters have no biases");
  }
  if (fields.text("hidden_act", "silu") != "silu")
    fields.refuse("hidden_act", "only silu is supported");
  const double dropout = fields.number("attention_dropout", 0.0, 1.0, 0.0);
  if (dropout != 0.0) fields.refuse("attention_dropout", "only 0 is supported");
}

// The drafter's own layers, as a llama or qwen3 config states them.
ModelConfig read_body(ConfigFields& fields) {
  ModelConfig body;
  body.model_type = fields.text("model_type", "llama");
  if (body.model_type != "llama" && body.model_type != "qwen3") {
    fields.refuse("model_type", "drafter layers are llama or qwen3");
  }
  body.qk_norm = body.model_type == "qwen3";
  refuse_what_changes_the_layers(fields);
  body.hidden_size = fields.integer("hidden_size", 1, kSizeMax);
  body.intermediate_size = fields.integer("intermediate_size", 1, kSizeMax);
  body.num_hidden_layers = fields.integer("num_hidden_layers", 1, kLayersMax);
  body.num_attention_heads = fields.integer("num_attention_heads", 1, kSizeMax);
  body.num_key_value_heads =
      fields.integer("num_key_value_heads", 1, body.num_attention_heads, body.num_attention_heads);
  // Not always hidden_size / heads: EAGLE#223, speculators#134.
  std::optional<int64_t> usual;
  if (body.hidden_size % body.num_attention_heads == 0) {
    usual = body.hidden_size / body.num_attention_heads;
  }
  body.head_dim = fields.integer("head_dim", 1, kSizeMax, usual);
  check_heads(fields, body);
  body.vocab_size = fields.integer("vocab_size", 1, kSizeMax);
  body.max_position_embeddings = fields.integer("max_position_embeddings", 1, kPositionsMax, 2048);
  body.rms_norm_eps = fields.number("rms_norm_eps", 0.0, 1.0, 1e-6);
  body.rope = read_rope_config(fields, body.max_position_embeddings);
  if (fields.status().ok()) read_sliding_window(fields, body);
  return body;
}

std::optional<int64_t> read_token(const json* value) {
  if (value == nullptr || !value->is_number_integer()) return std::nullopt;
  return value->get<int64_t>();
}

void read_tokens(const ConfigFields& fields, ModelConfig& body) {
  body.bos_token_id = read_token(fields.find("bos_token_id"));
  body.pad_token_id = read_token(fields.find("pad_token_id"));
  const json* eos = fields.find("eos_token_id");
  if (const auto one = read_token(eos)) body.eos_token_ids = {*one};
  if (eos == nullptr || !eos->is_array()) return;
  for (const json& id : *eos) {
    if (const auto token = read_token(&id)) body.eos_token_ids.push_back(*token);
  }
}

void read_eagle3(ConfigFields& top, DrafterConfig& config, bool speculators) {
  // The two formats differ in what an absent flag means.
  config.norm_before_residual = top.boolean("norm_before_residual", speculators);
  config.norm_before_fc = top.boolean("norm_before_fc", false);
  config.num_target_layers = top.integer("num_target_layers", 1, kLayersMax, 0);
  config.norm_output = top.boolean("norm_output", false);
  config.fc_norm = top.boolean("fc_norm", false);
  ConfigFields eagle(object_or_empty(top, "eagle_config"), top.what() + ": eagle_config");
  if (!eagle.boolean("use_aux_hidden_state", true)) {
    eagle.refuse("use_aux_hidden_state", "an EAGLE-3 drafter reads captured states");
  }
  top.fail(eagle.status());
  const auto count = static_cast<int64_t>(config.capture.size());
  const int64_t stated =
      top.integer("num_aux_hidden_states", 1, kLayersMax, count == 0 ? 3 : count);
  if (count != 0 && stated != count) {
    top.refuse("num_aux_hidden_states", fmt::format("{} layer ids are listed", count));
  }
}

void refuse_other_block_drafters(ConfigFields& top, ConfigFields& dflash, const json& object) {
  constexpr std::array<std::string_view, 6> kKnown = {"mask_token_id", "target_layer_ids",
                                                      "block_size",    "num_target_layers",
                                                      "mask_token",    "causal"};
  for (const auto& [key, value] : object.items()) {
    if (std::find(kKnown.begin(), kKnown.end(), key) != kKnown.end()) continue;
    dflash.refuse(key, "no part of a DFlash drafter that is supported here");
  }
  if (top.boolean("sample_from_anchor", false)) {
    top.refuse("sample_from_anchor",
               "slot k predicting the token after its own place is another kind of drafter");
  }
}

void read_dflash(ConfigFields& top, DrafterConfig& config, bool speculators) {
  const json& object = object_or_empty(top, "dflash_config");
  ConfigFields dflash(object, top.what() + ": dflash_config");
  refuse_other_block_drafters(top, dflash, object);
  const auto nested_or_top = [&](std::string_view key, int64_t least,
                                 std::optional<int64_t> absent) {
    ConfigFields& fields = dflash.find(key) != nullptr ? dflash : top;
    return fields.integer(key, least, kSizeMax, absent);
  };
  config.block_size = nested_or_top("block_size", 2, std::nullopt);
  config.mask_token_id = nested_or_top("mask_token_id", 0, std::nullopt);
  config.num_target_layers = nested_or_top("num_target_layers", 1, 0);
  const bool some_full =
      std::any_of(config.body.sliding_window.begin(), config.body.sliding_window.end(),
                  [](int64_t window) { return window == 0; });
  config.causal_in_sliding_layers = !top.boolean("sliding_window_non_causal", false);
  ConfigFields& stated = top.find("is_causal") != nullptr ? top : dflash;
  const std::string_view key = top.find("is_causal") != nullptr ? "is_causal" : "causal";
  if (!speculators && stated.find(key) != nullptr) {
    config.causal_in_sliding_layers = stated.boolean(key, true);
    if (config.causal_in_sliding_layers && some_full) {
      stated.refuse(key, "layers with full attention see their whole block here");
    }
  }
  top.fail(dflash.status());
}

// The kind by architecture name or speculators' model type; an error in `top` if it is another.
DrafterKind read_kind(ConfigFields& top, bool speculators) {
  if (speculators) {
    const std::string type = top.text("speculators_model_type", "");
    if (type == "dflash") return DrafterKind::kDflash;
    if (type != "eagle3") top.refuse("speculators_model_type", "supported are eagle3 and dflash");
    return DrafterKind::kEagle3;
  }
  const std::vector<std::string> names = top.texts("architectures");
  const std::string name = names.empty() ? "" : names.front();
  if (name == "DFlashDraftModel") return DrafterKind::kDflash;
  constexpr std::array<std::string_view, 3> kEagle3 = {
      "LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM"};
  if (std::find(kEagle3.begin(), kEagle3.end(), name) == kEagle3.end()) {
    top.refuse("architectures",
               "supported are LlamaForCausalLMEagle3, Eagle3LlamaForCausalLM, "
               "Eagle3Qwen3ForCausalLM and DFlashDraftModel");
  }
  return DrafterKind::kEagle3;
}

}  // namespace

Result<StatedDrafter> parse_drafter_config(std::string_view text, const std::string& what) {
  PERCHERON_ASSIGN_OR_RETURN(const json root, parse_json(text, what));
  ConfigFields top(root, what);
  PERCHERON_RETURN_IF_ERROR(top.status());
  const bool speculators = top.written("speculators_model_type");
  StatedDrafter stated;
  stated.layout = speculators ? DrafterLayout::kSpeculators : DrafterLayout::kOwn;
  DrafterConfig& config = stated.config;
  config.kind = read_kind(top, speculators);
  const std::string_view nested = "transformer_layer_config";
  if (speculators && top.find(nested) == nullptr)
    top.refuse(nested, "speculators' layout needs it");
  PERCHERON_RETURN_IF_ERROR(top.status());

  ConfigFields body(speculators ? object_or_empty(top, nested) : root,
                    speculators ? fmt::format("{}: {}", what, nested) : what);
  config.body = read_body(body);
  PERCHERON_RETURN_IF_ERROR(body.status());
  read_tokens(body, config.body);
  const std::vector<std::string> names = top.texts("architectures");
  config.body.architecture = names.empty() ? "" : names.front();
  config.body.dtype = top.text("dtype", top.text("torch_dtype", "float32"));
  config.body.tie_word_embeddings = top.boolean("tie_word_embeddings", false);
  config.target_hidden_size =
      top.integer("target_hidden_size", 1, kSizeMax, config.body.hidden_size);
  config.draft_vocab_size = top.integer("draft_vocab_size", 1, kSizeMax, config.body.vocab_size);
  config.capture = read_capture(top, root);
  if (config.kind == DrafterKind::kEagle3) {
    read_eagle3(top, config, speculators);
  } else {
    read_dflash(top, config, speculators);
  }
  PERCHERON_RETURN_IF_ERROR(top.status());
  PERCHERON_RETURN_IF_ERROR(check_drafter_config(config, what));
  return stated;
}

}  // namespace percheron
