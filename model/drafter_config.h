#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/config.h"
#include "model/drafter.h"

namespace percheron {

/// How a drafter lies on disk.
enum class DrafterLayout {
  kOwn,  // our step directories: SpecForge's SGLang export (EAGLE-3), z-lab's layout (DFlash)
  kSpecforgeHf,  // the same with the target's embedding as embed_tokens.weight (EAGLE-3)
  kSpeculators,  // speculators, served by vLLM alone
};

/// What kind of drafter to make for a target; the rest of its shape is the target's.
struct DrafterChoice {
  DrafterKind kind = DrafterKind::kEagle3;
  int64_t layers = 0;            // 0 = 1 (EAGLE-3) or 5 (DFlash)
  std::vector<int64_t> capture;  // empty = default_capture()
  int64_t draft_vocab_size = 0;  // 0 = min(32000, vocabulary) (EAGLE-3), the vocabulary (DFlash)
  bool norm_before_residual = false, norm_before_fc = false, norm_output = false, fc_norm = false;
  bool freeze_head = false;
  int64_t block_size = 16;     // DFlash
  int64_t mask_token_id = -1;  // DFlash, from resolve_mask_token()
  int64_t sliding_window = 0;  // DFlash: keys, the token itself included, of `sliding_layers`
  std::vector<int64_t> sliding_layers;
};

/// The layers whose states a drafter reads unless told otherwise, as j = residual stream after
/// layer j (0 = embedding). EAGLE-3: 2, N / 2, N - 3. DFlash: one per draft layer, spread evenly.
/// Source: EAGLE-3's trainer; z-lab's build_target_layer_ids.
std::vector<int64_t> default_capture(DrafterKind kind, int64_t target_layers, int64_t draft_layers);

/// Tokens that an EAGLE-3 drafter, a chain, drafts a round unless told otherwise.
inline constexpr int64_t kChainDraftLength = 3;

/// Tokens drafted a round unless told otherwise: a chain of kChainDraftLength, or a whole block.
inline int64_t default_draft_length(const DrafterConfig& config) {
  return config.kind == DrafterKind::kDflash ? config.block_size - 1 : kChainDraftLength;
}

/// The configuration of a new drafter. kInvalidArgument names the field that does not fit.
Result<DrafterConfig> derive_drafter_config(const ModelConfig& target, const DrafterChoice& choice);

/// The token whose embedding stands for "to be drafted" in DFlash: `wanted`, or the first row of
/// the target's table that its tokenizer, of `used_tokens` ids, does not use. kInvalidArgument when
/// there is no such row, or `wanted` is outside the table or means beginning, end or padding: an id
/// that the text uses too costs acceptance without a word (Model-Optimizer#1621, speculators#393).
Result<int64_t> resolve_mask_token(std::optional<int64_t> wanted, const ModelConfig& target,
                                   int64_t used_tokens);

/// Reads the text of a drafter's config.json in any layout that peers write: flat EAGLE-3
/// (SpecForge, SGLang, EAGLE), flat DFlash (z-lab, SpecForge), speculators. Peers count captured
/// layers differently; `capture` is always j. Left empty if the file does not say;
/// num_target_layers is 0 then, for match_target() to fill. kInvalidArgument names key and value of
/// what is not supported.
struct StatedDrafter {
  DrafterConfig config;
  DrafterLayout layout = DrafterLayout::kOwn;
};
Result<StatedDrafter> parse_drafter_config(std::string_view text, const std::string& what);

/// Fills what the file left to the target and checks that the two belong together: vocabulary (to
/// the row: vllm#46435), hidden size, layer ids. `what` names the drafter in messages.
Status match_target(DrafterConfig& config, const ModelConfig& target, const std::string& what);

/// Whether the configuration is consistent in itself; names the field that is not.
Status check_drafter_config(const DrafterConfig& config, const std::string& what);

/// What an exported configuration states besides the drafter's own shape.
struct ConfigExport {
  DrafterLayout layout = DrafterLayout::kOwn;
  std::string target_path;          // speculators: the verifier's name or path
  std::string target_architecture;  // speculators: "LlamaForCausalLM"
  int64_t draft_tokens = 0;         // speculators, EAGLE-3: drafted tokens a round
};

/// The text of config.json. Layer ids, rope, block size, mask token and dtype are always written,
/// in every spelling that a server reads. kInvalidArgument when the layout can't express the
/// drafter.
Result<std::string> drafter_config_text(const DrafterConfig& config, const ConfigExport& options);

enum class ServingEngine { kSglang, kVllm };

/// The command that serves `target_path` with the drafter in `directory`. `draft_tokens`: drafted
/// tokens a round (EAGLE-3); a DFlash drafter drafts block_size - 1. SGLang is told the size of the
/// verified block, one more, vLLM the number of drafted tokens (speculators#456). kInvalidArgument
/// when the engine does not read the layout.
Result<std::string> serve_command(const DrafterConfig& config, DrafterLayout layout,
                                  const std::string& directory, const std::string& target_path,
                                  ServingEngine engine, int64_t draft_tokens);

}  // namespace percheron
