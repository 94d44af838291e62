#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/status.h"
#include "kernels/tensor.h"

namespace percheron {

enum class RopeType { kDefault, kLinear, kDynamic, kLlama3, kYarn };

/// As `rope_type` spells it.
const char* rope_type_name(RopeType type);

/// Rotary position embedding as the checkpoint's config states it, after the precedence rules of
/// transformers.
struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
  double beta_fast = 32.0, beta_slow = 1.0;              // yarn
  std::optional<double> attention_factor, mscale, mscale_all_dim;
  bool truncate = true;
  int64_t original_max_position_embeddings = 0;  // already defaulted to max_position_embeddings

  bool operator==(const RopeConfig&) const = default;
};

/// The shape of a transformer in Hugging Face's terms, with every default filled in by family.
struct ModelConfig {
  std::string model_type;    // llama, qwen2, qwen3, mistral
  std::string architecture;  // architectures[0], or empty
  int64_t hidden_size = 0, intermediate_size = 0;
  int64_t num_hidden_layers = 0, num_attention_heads = 0, num_key_value_heads = 0, head_dim = 0;
  int64_t vocab_size = 0, max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = false;
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  bool qk_norm = false;  // a norm per head before rotary (qwen3)
  /// Per layer; 0 = full attention, W = W keys including the token itself.
  std::vector<int64_t> sliding_window;
  RopeConfig rope;
  std::string dtype = "float32";  // as stated: float32, float16, bfloat16
  std::optional<int64_t> bos_token_id, pad_token_id;
  std::vector<int64_t> eos_token_ids;  // generation_config.json first, config.json second
};

/// Reads DIRECTORY/config.json (and generation_config.json). kInvalidArgument names the key and its
/// value when the architecture, rope type or an option is not supported; numbers are range-checked.
/// `text_config` nesting is followed.
Result<ModelConfig> read_model_config(FileSystem& files, const std::string& directory);

}  // namespace percheron
