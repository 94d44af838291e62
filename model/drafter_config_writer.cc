#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "model/drafter_config.h"

namespace percheron {
namespace {

using nlohmann::json;

// The version of speculators whose files this layout follows.
constexpr std::string_view kSpeculatorsVersion = "0.9.0";

// What rope_scaling says: everything but theta.
json rope_scaling(const RopeConfig& rope) {
  json object = {{"rope_type", rope_type_name(rope.type)}};
  if (rope.type == RopeType::kDefault) return object;
  object["factor"] = rope.factor;
  if (rope.original_max_position_embeddings > 0) {
    object["original_max_position_embeddings"] = rope.original_max_position_embeddings;
  }
  if (rope.type == RopeType::kLlama3) {
    object["low_freq_factor"] = rope.low_freq_factor;
    object["high_freq_factor"] = rope.high_freq_factor;
  }
  if (rope.type == RopeType::kYarn) {
    object["beta_fast"] = rope.beta_fast;
    object["beta_slow"] = rope.beta_slow;
    object["truncate"] = rope.truncate;
    if (rope.attention_factor) object["attention_factor"] = *rope.attention_factor;
    if (rope.mscale) object["mscale"] = *rope.mscale;
    if (rope.mscale_all_dim) object["mscale_all_dim"] = *rope.mscale_all_dim;
  }
  return object;
}

// In all three spellings: an engine that reads none of them would take theta 10000 (SpecForge#265).
void write_rope(const RopeConfig& rope, json& object) {
  json parameters = rope_scaling(rope);
  parameters["rope_theta"] = rope.theta;
  object["rope_parameters"] = parameters;
  object["rope_scaling"] = rope.type == RopeType::kDefault ? json() : rope_scaling(rope);
  object["rope_theta"] = rope.theta;
}

json token_or_null(std::optional<int64_t> token) { return token ? json(*token) : json(); }

json eos_tokens(const ModelConfig& body) {
  if (body.eos_token_ids.empty()) return json();
  return body.eos_token_ids.size() == 1 ? json(body.eos_token_ids[0]) : json(body.eos_token_ids);
}

void write_windows(const ModelConfig& body, json& object) {
  json types = json::array();
  int64_t window = 0;
  for (const int64_t layer : body.sliding_window) {
    types.push_back(layer > 0 ? "sliding_attention" : "full_attention");
    window = std::max(window, layer);
  }
  object["layer_types"] = types;
  object["sliding_window"] = window > 0 ? json(window) : json();
  object["use_sliding_window"] = window > 0;
  object["max_window_layers"] = body.num_hidden_layers;
}

// The drafter's layers as a llama or qwen3 config.
json body_object(const ModelConfig& body) {
  json object = {{"attention_bias", false},
                 {"attention_dropout", 0.0},
                 {"bos_token_id", token_or_null(body.bos_token_id)},
                 {"eos_token_id", eos_tokens(body)},
                 {"head_dim", body.head_dim},
                 {"hidden_act", "silu"},
                 {"hidden_size", body.hidden_size},
                 {"initializer_range", 0.02},
                 {"intermediate_size", body.intermediate_size},
                 {"max_position_embeddings", body.max_position_embeddings},
                 {"model_type", body.qk_norm ? "qwen3" : "llama"},
                 {"num_attention_heads", body.num_attention_heads},
                 {"num_hidden_layers", body.num_hidden_layers},
                 {"num_key_value_heads", body.num_key_value_heads},
                 {"pad_token_id", token_or_null(body.pad_token_id)},
                 {"rms_norm_eps", body.rms_norm_eps},
                 {"tie_word_embeddings", false},
                 {"use_cache", true},
                 {"vocab_size", body.vocab_size}};
  if (!body.qk_norm) {
    object["mlp_bias"] = false;
    object["pretraining_tp"] = 1;
  }
  write_rope(body.rope, object);
  return object;
}

// Layer ids as SpecForge, SGLang and z-lab count them: by the layer whose output is captured.
std::vector<int64_t> output_ids(const std::vector<int64_t>& capture) {
  std::vector<int64_t> ids = capture;
  for (int64_t& id : ids) --id;
  return ids;
}

bool slides(const DrafterConfig& config) {
  return std::any_of(config.body.sliding_window.begin(), config.body.sliding_window.end(),
                     [](int64_t window) { return window > 0; });
}

Result<json> flat_eagle3(const DrafterConfig& config, DrafterLayout layout) {
  if (config.body.qk_norm && layout == DrafterLayout::kSpecforgeHf) {
    return invalid_argument(
        "SpecForge's layout has no place for q_norm and k_norm; export with --to speculators");
  }
  json object = body_object(config.body);
  if (slides(config)) write_windows(config.body, object);
  object["architectures"] = {config.body.qk_norm ? "Eagle3Qwen3ForCausalLM"
                                                 : "LlamaForCausalLMEagle3"};
  object["draft_vocab_size"] = config.draft_vocab_size;
  object["dtype"] = "bfloat16";
  object["torch_dtype"] = "bfloat16";
  object["eagle_aux_hidden_state_layer_ids"] = config.capture;
  object["eagle_config"] = {{"eagle_aux_hidden_state_layer_ids", output_ids(config.capture)},
                            {"use_aux_hidden_state", true}};
  // vLLM builds fc for three states unless told here or in the nested list.
  if (config.capture.size() != 3) object["num_aux_hidden_states"] = config.capture.size();
  if (config.num_target_layers > 0) object["num_target_layers"] = config.num_target_layers;
  // SGLang takes a null for a size.
  if (config.target_hidden_size != config.body.hidden_size) {
    object["target_hidden_size"] = config.target_hidden_size;
  }
  // Only where true: a stated norm_output has meant two things (SpecForge#879).
  if (config.norm_before_residual) object["norm_before_residual"] = true;
  if (config.norm_before_fc) object["norm_before_fc"] = true;
  if (config.norm_output) object["norm_output"] = true;
  if (config.fc_norm) object["fc_norm"] = true;
  return object;
}

json flat_dflash(const DrafterConfig& config) {
  json object = body_object(config.body);
  write_windows(config.body, object);
  object["architectures"] = {"DFlashDraftModel"};
  object["block_size"] = config.block_size;
  object["draft_vocab_size"] = config.draft_vocab_size;
  object["dtype"] = "bfloat16";
  object["torch_dtype"] = "bfloat16";
  object["dflash_config"] = {{"block_size", config.block_size},
                             {"mask_token_id", config.mask_token_id},
                             {"target_layer_ids", output_ids(config.capture)}};
  if (slides(config) && !config.causal_in_sliding_layers) object["dflash_config"]["causal"] = false;
  if (config.num_target_layers > 0) {
    object["num_target_layers"] = config.num_target_layers;
    object["dflash_config"]["num_target_layers"] = config.num_target_layers;
  }
  return object;
}

json speculators_method(const ConfigExport& options, std::string_view algorithm, int64_t tokens) {
  const json method = {{"accept_tolerance", 0.0},
                       {"proposal_type", "greedy"},
                       {"speculative_tokens", tokens},
                       {"verifier_accept_k", 1}};
  return {{"algorithm", algorithm},
          {"default_proposal_method", "greedy"},
          {"proposal_methods", json::array({method})},
          {"verifier",
           {{"architectures", json::array({options.target_architecture})},
            {"name_or_path", options.target_path}}}};
}

Status check_for_speculators(const DrafterConfig& config, const ConfigExport& options) {
  if (options.target_path.empty() || options.target_architecture.empty()) {
    return invalid_argument("speculators' layout names the target: its path and architecture");
  }
  const bool eagle3 = config.kind == DrafterKind::kEagle3;
  if (eagle3 && options.draft_tokens < 1) {
    return invalid_argument(
        fmt::format("speculators' layout states the drafted tokens a round: {} "
                    "is not positive",
                    options.draft_tokens));
  }
  if (eagle3 && config.capture.size() != 3) {
    return invalid_argument(
        fmt::format("vLLM builds three captured states for speculators' layout, "
                    "this drafter reads {}; export with --to specforge",
                    config.capture.size()));
  }
  const auto full =
      std::count(config.body.sliding_window.begin(), config.body.sliding_window.end(), 0);
  if (!eagle3 && full != 0 && slides(config) && config.causal_in_sliding_layers) {
    return invalid_argument(
        "speculators' layout has one causality for all layers, this drafter has "
        "two; export with --to specforge");
  }
  return ok_status();
}

Result<json> speculators(const DrafterConfig& config, const ConfigExport& options) {
  PERCHERON_RETURN_IF_ERROR(check_for_speculators(config, options));
  const bool eagle3 = config.kind == DrafterKind::kEagle3;
  json body = body_object(config.body);
  write_windows(config.body, body);
  json object = {{"architectures", {eagle3 ? "Eagle3DraftModel" : "DFlashDraftModel"}},
                 {"draft_vocab_size", config.draft_vocab_size},
                 {"dtype", "bfloat16"},
                 {"speculators_model_type", eagle3 ? "eagle3" : "dflash"},
                 {"speculators_version", kSpeculatorsVersion},
                 {"tie_word_embeddings", false},
                 {"transformer_layer_config", body}};
  if (config.target_hidden_size != config.body.hidden_size) {
    object["target_hidden_size"] = config.target_hidden_size;
  }
  if (eagle3) {
    object["eagle_aux_hidden_state_layer_ids"] = config.capture;
    object["embed_requires_grad"] = false;
    object["fc_norm"] = config.fc_norm;
    object["norm_before_fc"] = config.norm_before_fc;
    object["norm_before_residual"] = config.norm_before_residual;
    object["norm_output"] = config.norm_output;
    object["speculators_config"] = speculators_method(options, "eagle3", options.draft_tokens);
    return object;
  }
  object["aux_hidden_state_layer_ids"] = config.capture;
  object["block_size"] = config.block_size;
  object["mask_token_id"] = config.mask_token_id;
  object["sample_from_anchor"] = false;
  // vLLM serves every layer causally unless this is true, full attention too (vllm#56692).
  object["sliding_window_non_causal"] = !slides(config) || !config.causal_in_sliding_layers;
  object["speculators_config"] = speculators_method(options, "dflash", config.block_size - 1);
  return object;
}

}  // namespace

Result<std::string> drafter_config_text(const DrafterConfig& config, const ConfigExport& options) {
  PERCHERON_RETURN_IF_ERROR(check_drafter_config(config, "drafter"));
  if (config.capture.empty()) {
    return invalid_argument("drafter: without captured layers its configuration is incomplete");
  }
  json object;
  if (options.layout == DrafterLayout::kSpeculators) {
    PERCHERON_ASSIGN_OR_RETURN(object, speculators(config, options));
  } else if (config.kind == DrafterKind::kEagle3) {
    PERCHERON_ASSIGN_OR_RETURN(object, flat_eagle3(config, options.layout));
  } else {
    object = flat_dflash(config);
  }
  return object.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace percheron
