#include "model/drafter_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace percheron {
namespace {

constexpr int64_t kDefaultDraftVocabulary = 32000;
constexpr int64_t kDefaultDflashLayers = 5;

// Python's round(): halves go to the even neighbour.
int64_t round_half_even(double value) { return static_cast<int64_t>(std::nearbyint(value)); }

Status check_capture(const DrafterConfig& config, const std::string& what) {
  if (config.capture.empty()) return ok_status();
  for (const int64_t j : config.capture) {
    if (j < 0 || (config.num_target_layers > 0 && j > config.num_target_layers)) {
      return invalid_argument(fmt::format(
          "{}: captured layers [{}] go outside the target's {} layers (0 is the embedding)", what,
          fmt::join(config.capture, ", "), config.num_target_layers));
    }
  }
  std::vector<int64_t> sorted = config.capture;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    return invalid_argument(fmt::format("{}: captured layers [{}] name one layer twice", what,
                                        fmt::join(config.capture, ", ")));
  }
  return ok_status();
}

Status check_eagle3(const DrafterConfig& config, const std::string& what) {
  if (config.body.num_hidden_layers != 1) {
    return invalid_argument(
        fmt::format("{}: \"num_hidden_layers\" is {}: an EAGLE-3 drafter has "
                    "one layer",
                    what, config.body.num_hidden_layers));
  }
  for (const int64_t window : config.body.sliding_window) {
    if (window == 0) continue;
    return invalid_argument(
        fmt::format("{}: \"sliding_window\" is {}: the layer of an EAGLE-3 drafter is trained with "
                    "full attention; leave sliding_window and sliding_layers out",
                    what, window));
  }
  if (config.fc_norm && config.norm_before_fc) {
    return invalid_argument(
        fmt::format("{}: \"fc_norm\" and \"norm_before_fc\" exclude each other", what));
  }
  if (config.body.tie_word_embeddings) {
    return invalid_argument(
        fmt::format("{}: \"tie_word_embeddings\" is true: the head of {} rows is the drafter's own "
                    "and can't be "
                    "the embedding of {} rows; set it to false",
                    what, config.draft_vocab_size, config.body.vocab_size));
  }
  return ok_status();
}

// One word of a POSIX shell: as it is where no character has a meaning there, else quoted.
std::string shell_word(const std::string& text) {
  constexpr std::string_view kPlain = "_@%+=:,./-";
  const auto plain = [&](char c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    return letter || (c >= '0' && c <= '9') || kPlain.find(c) != kPlain.npos;
  };
  if (!text.empty() && std::all_of(text.begin(), text.end(), plain)) return text;
  std::string word = "'";
  for (const char c : text) {
    if (c == '\'') {
      word += "'\\''";
    } else {
      word += c;
    }
  }
  return word + "'";
}

Status check_dflash(const DrafterConfig& config, const std::string& what) {
  if (config.block_size < 2 || config.block_size > 1024) {
    return invalid_argument(fmt::format("{}: \"block_size\" is {}: it must be from 2 to 1024", what,
                                        config.block_size));
  }
  // A slot's own block counts in no window, neither in training nor here: it must fit into it.
  for (const int64_t window : config.body.sliding_window) {
    if (window == 0 || window >= config.block_size) continue;
    return invalid_argument(
        fmt::format("{}: \"sliding_window\" is {}: it must hold a whole block, at least the "
                    "\"block_size\" of {}",
                    what, window, config.block_size));
  }
  if (config.mask_token_id < 0 || config.mask_token_id >= config.body.vocab_size) {
    return invalid_argument(
        fmt::format("{}: \"mask_token_id\" is {}: it must be a row of the target's table of {}",
                    what, config.mask_token_id, config.body.vocab_size));
  }
  const auto& eos = config.body.eos_token_ids;
  const bool ends = std::find(eos.begin(), eos.end(), config.mask_token_id) != eos.end();
  if (ends || config.mask_token_id == config.body.pad_token_id) {
    return invalid_argument(fmt::format("{}: \"mask_token_id\" is {}, which the target uses as {}",
                                        what, config.mask_token_id,
                                        ends ? "end of text" : "padding"));
  }
  return ok_status();
}

}  // namespace

std::vector<int64_t> default_capture(DrafterKind kind, int64_t target_layers,
                                     int64_t draft_layers) {
  if (kind == DrafterKind::kEagle3) return {2, target_layers / 2, target_layers - 3};
  if (draft_layers == 1) return {target_layers / 2 + 1};
  std::vector<int64_t> capture;
  for (int64_t i = 0; i < draft_layers; ++i) {
    const double span = static_cast<double>(i * (target_layers - 4));
    capture.push_back(round_half_even(1.0 + span / static_cast<double>(draft_layers - 1)) + 1);
  }
  return capture;
}

Result<DrafterConfig> derive_drafter_config(const ModelConfig& target,
                                            const DrafterChoice& choice) {
  const bool eagle3 = choice.kind == DrafterKind::kEagle3;
  DrafterConfig config;
  config.kind = choice.kind;
  config.body = target;
  config.body.model_type = eagle3 ? "llama" : "qwen3";
  config.body.architecture = eagle3 ? "LlamaForCausalLMEagle3" : "DFlashDraftModel";
  config.body.num_hidden_layers =
      choice.layers > 0 ? choice.layers : (eagle3 ? 1 : kDefaultDflashLayers);
  config.body.tie_word_embeddings = false;
  config.body.qkv_bias = config.body.o_bias = config.body.mlp_bias = false;
  config.body.qk_norm = !eagle3;
  config.body.dtype = "bfloat16";
  config.body.sliding_window.assign(static_cast<size_t>(config.body.num_hidden_layers), 0);
  for (const int64_t layer : choice.sliding_layers) {
    if (layer < 0 || layer >= config.body.num_hidden_layers || choice.sliding_window < 1) {
      return invalid_argument(
          fmt::format("drafter.sliding_layers names layer {} of {} with drafter.sliding_window {}",
                      layer, config.body.num_hidden_layers, choice.sliding_window));
    }
    config.body.sliding_window[static_cast<size_t>(layer)] = choice.sliding_window;
  }
  config.target_hidden_size = target.hidden_size;
  config.num_target_layers = target.num_hidden_layers;
  config.capture = choice.capture;
  const int64_t whole = target.vocab_size;
  const int64_t usual = eagle3 ? std::min(kDefaultDraftVocabulary, whole) : whole;
  config.draft_vocab_size = choice.draft_vocab_size > 0 ? choice.draft_vocab_size : usual;
  config.norm_before_residual = choice.norm_before_residual;
  config.norm_before_fc = choice.norm_before_fc;
  config.norm_output = choice.norm_output;
  config.fc_norm = choice.fc_norm;
  config.freeze_head = choice.freeze_head;
  config.block_size = eagle3 ? 0 : choice.block_size;
  config.mask_token_id = eagle3 ? -1 : choice.mask_token_id;
  PERCHERON_RETURN_IF_ERROR(match_target(config, target, "drafter"));
  return config;
}

Result<int64_t> resolve_mask_token(std::optional<int64_t> wanted, const ModelConfig& target,
                                   int64_t used_tokens) {
  if (!wanted.has_value()) {
    if (used_tokens >= 0 && used_tokens < target.vocab_size) return used_tokens;
    return invalid_argument(
        fmt::format("the target's table of {} rows has none that its tokenizer of {} tokens leaves "
                    "unused; give "
                    "drafter.mask_token_id, a token that the text never holds",
                    target.vocab_size, used_tokens));
  }
  if (*wanted < 0 || *wanted >= target.vocab_size) {
    return invalid_argument(
        fmt::format("drafter.mask_token_id {} is outside the target's table of "
                    "{} rows",
                    *wanted, target.vocab_size));
  }
  const auto& eos = target.eos_token_ids;
  std::string_view meaning;
  if (std::find(eos.begin(), eos.end(), *wanted) != eos.end()) meaning = "end of text";
  if (*wanted == target.pad_token_id) meaning = "padding";
  if (*wanted == target.bos_token_id) meaning = "beginning of text";
  if (!meaning.empty()) {
    return invalid_argument(
        fmt::format("drafter.mask_token_id {} is the target's token for {}; "
                    "choose one that the text never holds",
                    *wanted, meaning));
  }
  return *wanted;
}

Status match_target(DrafterConfig& config, const ModelConfig& target, const std::string& what) {
  if (config.body.vocab_size != target.vocab_size) {
    return invalid_argument(
        fmt::format("{}: \"vocab_size\" is {}, but the target's is {}; they must be equal to the "
                    "row, padding included",
                    what, config.body.vocab_size, target.vocab_size));
  }
  if (config.target_hidden_size == 0) config.target_hidden_size = config.body.hidden_size;
  if (config.target_hidden_size != target.hidden_size) {
    return invalid_argument(
        fmt::format("{}: made for a target of hidden size {}, but this one has "
                    "{}",
                    what, config.target_hidden_size, target.hidden_size));
  }
  if (config.body.hidden_size != target.hidden_size) {
    return invalid_argument(
        fmt::format("{}: \"hidden_size\" is {}, but the target's embedding, which the drafter "
                    "reads, has {} columns",
                    what, config.body.hidden_size, target.hidden_size));
  }
  if (config.num_target_layers == 0) config.num_target_layers = target.num_hidden_layers;
  if (config.num_target_layers != target.num_hidden_layers) {
    return invalid_argument(fmt::format("{}: \"num_target_layers\" is {}, but the target has {}",
                                        what, config.num_target_layers, target.num_hidden_layers));
  }
  if (config.capture.empty()) {
    config.capture =
        default_capture(config.kind, target.num_hidden_layers, config.body.num_hidden_layers);
  }
  return check_drafter_config(config, what);
}

Status check_drafter_config(const DrafterConfig& config, const std::string& what) {
  if (config.draft_vocab_size < 1 || config.draft_vocab_size > config.body.vocab_size) {
    return invalid_argument(
        fmt::format("{}: \"draft_vocab_size\" is {}: it must be from 1 to the target's {}", what,
                    config.draft_vocab_size, config.body.vocab_size));
  }
  PERCHERON_RETURN_IF_ERROR(check_capture(config, what));
  return config.kind == DrafterKind::kEagle3 ? check_eagle3(config, what)
                                             : check_dflash(config, what);
}

Result<std::string> serve_command(const DrafterConfig& config, DrafterLayout layout,
                                  const std::string& directory, const std::string& target_path,
                                  ServingEngine engine, int64_t draft_tokens) {
  const bool eagle3 = config.kind == DrafterKind::kEagle3;
  if (!eagle3) draft_tokens = config.block_size - 1;
  if (engine == ServingEngine::kVllm) {
    if (layout == DrafterLayout::kSpeculators) {
      return fmt::format("vllm serve {}", shell_word(directory));
    }
    nlohmann::ordered_json speculative;
    speculative["method"] = eagle3 ? "eagle3" : "dflash";
    speculative["model"] = directory;
    speculative["num_speculative_tokens"] = draft_tokens;
    using Handler = nlohmann::ordered_json::error_handler_t;
    return fmt::format("vllm serve {} --speculative-config {}", shell_word(target_path),
                       shell_word(speculative.dump(-1, ' ', false, Handler::replace)));
  }
  if (layout == DrafterLayout::kSpeculators) {
    return invalid_argument(fmt::format(
        "{}: SGLang does not read the speculators layout; export with --to specforge", directory));
  }
  const std::string server =
      fmt::format("python -m sglang.launch_server --model-path {}", shell_word(target_path));
  if (!eagle3) {
    return fmt::format(
        "{} --speculative-algorithm DFLASH --speculative-draft-model-path {} "
        "--speculative-num-draft-tokens {}",
        server, shell_word(directory), draft_tokens + 1);
  }
  return fmt::format(
      "{} --speculative-algorithm EAGLE3 --speculative-draft-model-path {} "
      "--speculative-num-steps {} --speculative-eagle-topk 1 "
      "--speculative-num-draft-tokens {}",
      server, shell_word(directory), draft_tokens, draft_tokens + 1);
}

}  // namespace percheron
