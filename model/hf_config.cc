#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "base/json.h"
#include "model/config.h"
#include "model/config_fields.h"
#include "model/hf_rope_config.h"

namespace percheron {
namespace {

using nlohmann::json;

constexpr int64_t kWidthMax = int64_t{1} << 20;
constexpr int64_t kLayersMax = 1024;
constexpr int64_t kVocabularyMax = int64_t{1} << 24;
constexpr int64_t kPositionsMax = int64_t{1} << 30;

enum class HeadDimDefault { kHiddenOverHeads, k128 };
enum class Windows { kNever, kEveryLayer, kByLayer };

// What transformers 5.24 assumes for keys that a config leaves out.
struct Family {
  std::string_view model_type;
  HeadDimDefault head_dim;
  int64_t num_key_value_heads;  // 0 = as many as query heads
  int64_t max_position_embeddings;
  Windows windows;
};

constexpr std::array<Family, 4> kFamilies = {{
    {"llama", HeadDimDefault::kHiddenOverHeads, 0, 2048, Windows::kNever},
    {"qwen2", HeadDimDefault::kHiddenOverHeads, 32, 32768, Windows::kByLayer},
    {"qwen3", HeadDimDefault::k128, 32, 32768, Windows::kByLayer},
    {"mistral", HeadDimDefault::kHiddenOverHeads, 8, 131072, Windows::kEveryLayer},
}};

const Family* find_family(ConfigFields& fields) {
  const std::string model_type = fields.text("model_type", "");
  for (const Family& family : kFamilies) {
    if (family.model_type == model_type) return &family;
  }
  fields.refuse("model_type",
                "this architecture is not supported; known are llama, qwen2, qwen3 and mistral");
  return nullptr;
}

// Options that change the arithmetic and that none of the supported families has.
void refuse_unsupported(ConfigFields& fields) {
  if (fields.find("quantization_config") != nullptr) {
    fields.refuse("quantization_config",
                  "quantized checkpoints are not supported; use one in "
                  "bfloat16, float16 or float32, which target.weights keeps in 8 bits");
  }
  for (const std::string_view key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    if (fields.find(key) != nullptr) fields.refuse(key, "soft capping is not supported");
  }
  if (fields.boolean("use_bidirectional_attention", false)) {
    fields.refuse("use_bidirectional_attention", "only causal models are supported");
  }
  const std::string activation = fields.text("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") {
    fields.refuse("hidden_act", "only silu is supported");
  }
}

void read_shape(ConfigFields& fields, const Family& family, ModelConfig& config) {
  config.hidden_size = fields.integer("hidden_size", 1, kWidthMax);
  config.intermediate_size = fields.integer("intermediate_size", 1, kWidthMax);
  config.num_hidden_layers = fields.integer("num_hidden_layers", 1, kLayersMax);
  config.num_attention_heads = fields.integer("num_attention_heads", 1, kWidthMax);
  config.vocab_size = fields.integer("vocab_size", 1, kVocabularyMax);
  config.max_position_embeddings =
      fields.integer("max_position_embeddings", 1, kPositionsMax, family.max_position_embeddings);
  config.rms_norm_eps = fields.number("rms_norm_eps", 0.0, 1.0, 1e-6);
  const int64_t heads = config.num_attention_heads;
  // An absent key and a null one differ: null always means as many as query heads.
  const bool as_query = family.num_key_value_heads == 0 || fields.written("num_key_value_heads");
  config.num_key_value_heads = fields.integer("num_key_value_heads", 1, kWidthMax,
                                              as_query ? heads : family.num_key_value_heads);
  int64_t head_dim = 128;
  if (family.head_dim == HeadDimDefault::kHiddenOverHeads && fields.find("head_dim") == nullptr) {
    head_dim = config.hidden_size / heads;
    if (fields.status().ok() && config.hidden_size % heads != 0) {
      fields.refuse("hidden_size", fmt::format("it must be a multiple of num_attention_heads = {} "
                                               "where head_dim is absent",
                                               heads));
    }
  }
  config.head_dim = fields.integer("head_dim", 1, kWidthMax, head_dim);
  check_heads(fields, config);
}

void read_biases(ConfigFields& fields, ModelConfig& config) {
  if (config.model_type == "llama") {
    config.qkv_bias = config.o_bias = fields.boolean("attention_bias", false);
    config.mlp_bias = fields.boolean("mlp_bias", false);
  } else if (config.model_type == "qwen2") {
    config.qkv_bias = true;  // Always, whatever the config says.
  } else if (config.model_type == "qwen3") {
    config.qkv_bias = config.o_bias = fields.boolean("attention_bias", false);
    config.qk_norm = true;
  }
}

// Which layers slide, from layer_types; empty when the config doesn't say.
std::vector<bool> read_layer_types(ConfigFields& fields, int64_t layers) {
  std::vector<bool> slides;
  for (const std::string& type : fields.texts("layer_types")) {
    if (type != "full_attention" && type != "sliding_attention") {
      fields.refuse("layer_types", fmt::format("layers of type '{}' are not supported", type));
    }
    slides.push_back(type == "sliding_attention");
  }
  if (!slides.empty() && static_cast<int64_t>(slides.size()) != layers) {
    fields.refuse("layer_types", fmt::format("it lists {} layers, num_hidden_layers is {}",
                                             slides.size(), layers));
  }
  return slides;
}

void read_windows(ConfigFields& fields, const Family& family, ModelConfig& config) {
  const int64_t layers = config.num_hidden_layers;
  config.sliding_window.assign(static_cast<size_t>(layers), 0);
  // An absent window is 4096 in every family that has one, a null means none.
  int64_t window = fields.written("sliding_window") && fields.find("sliding_window") == nullptr
                       ? 0
                       : fields.integer("sliding_window", 1, kPositionsMax, 4096);
  std::vector<bool> slides = read_layer_types(fields, layers);
  if (!fields.status().ok()) return;
  switch (family.windows) {
    case Windows::kNever:
      if (std::count(slides.begin(), slides.end(), true) > 0) {
        fields.refuse("layer_types", "a llama has no sliding layers");
      }
      return;
    case Windows::kEveryLayer:
      if (window > 0 && std::count(slides.begin(), slides.end(), false) > 0) {
        fields.refuse("layer_types", "every layer of a mistral slides where sliding_window is set");
      }
      slides.assign(static_cast<size_t>(layers), true);
      break;
    case Windows::kByLayer:
      if (!fields.boolean("use_sliding_window", false)) window = 0;
      if (slides.empty()) {
        const int64_t first = fields.integer("max_window_layers", 0, kPositionsMax, 28);
        for (int64_t i = 0; i < layers; ++i) slides.push_back(i >= first);
      }
      break;
  }
  for (int64_t i = 0; i < layers; ++i) {
    if (slides[static_cast<size_t>(i)]) config.sliding_window[static_cast<size_t>(i)] = window;
  }
}

void read_dtype(ConfigFields& fields, ModelConfig& config) {
  const std::string_view key = fields.find("dtype") != nullptr ? "dtype" : "torch_dtype";
  std::string name = fields.text(key, "float32");
  if (name.starts_with("torch.")) name = name.substr(6);
  if (name != "float32" && name != "float16" && name != "bfloat16") {
    fields.refuse(key, "supported are float32, float16 and bfloat16");
  }
  config.dtype = name;
}

// A token id, or a list of them.
std::vector<int64_t> read_token_ids(ConfigFields& fields, std::string_view key) {
  const json* value = fields.find(key);
  if (value == nullptr) return {};
  if (!value->is_array()) return {fields.integer(key, 0, kVocabularyMax)};
  std::vector<int64_t> ids;
  for (const json& element : *value) {
    if (!element.is_number_integer() || element.get<int64_t>() < 0 ||
        element.get<int64_t>() > kVocabularyMax) {
      fields.refuse(key, "every entry must be a token id");
      return {};
    }
    ids.push_back(element.get<int64_t>());
  }
  return ids;
}

void read_special_tokens(ConfigFields& fields, ModelConfig& config) {
  // Some configs list several first tokens or say -1 for none; neither matters to a target.
  const auto single = [&](std::string_view key) -> std::optional<int64_t> {
    const json* value = fields.find(key);
    if (value == nullptr || !value->is_number_integer()) return std::nullopt;
    const int64_t id = value->get<int64_t>();
    return id < 0 ? std::nullopt : std::optional<int64_t>(id);
  };
  config.bos_token_id = single("bos_token_id");
  config.pad_token_id = single("pad_token_id");
  config.eos_token_ids = read_token_ids(fields, "eos_token_id");
}

// The language model's own object: `text_config` where the config nests one, with what only the
// outer object says.
json language_model_object(const json& config) {
  if (!config.is_object()) return config;
  const auto inner = config.find("text_config");
  if (inner == config.end() || !inner->is_object()) return config;
  json merged = *inner;
  for (const std::string_view key :
       {"architectures", "tie_word_embeddings", "dtype", "torch_dtype", "eos_token_id",
        "bos_token_id", "pad_token_id", "quantization_config"}) {
    const auto outer = config.find(key);
    if (outer != config.end() && !merged.contains(key)) merged[std::string(key)] = *outer;
  }
  return merged;
}

}  // namespace

Result<ModelConfig> read_model_config(FileSystem& files, const std::string& directory) {
  const std::string path = join_path(directory, "config.json");
  PERCHERON_ASSIGN_OR_RETURN(const std::string text, files.read_text(path));
  PERCHERON_ASSIGN_OR_RETURN(const json parsed, parse_json(text, path));
  const json object = language_model_object(parsed);
  ConfigFields fields(object, path);
  PERCHERON_RETURN_IF_ERROR(fields.status());
  const Family* family = find_family(fields);
  PERCHERON_RETURN_IF_ERROR(fields.status());

  ModelConfig config;
  config.model_type = std::string(family->model_type);
  const std::vector<std::string> architectures = fields.texts("architectures");
  if (!architectures.empty()) config.architecture = architectures[0];
  refuse_unsupported(fields);
  read_shape(fields, *family, config);
  config.tie_word_embeddings = fields.boolean("tie_word_embeddings", false);
  read_biases(fields, config);
  PERCHERON_RETURN_IF_ERROR(fields.status());
  read_windows(fields, *family, config);
  config.rope = read_rope_config(fields, config.max_position_embeddings);
  if (config.rope.type == RopeType::kDynamic && config.head_dim < 4) {
    fields.refuse("head_dim", "a dynamic rope needs a head_dim of at least 4");
  }
  read_dtype(fields, config);
  read_special_tokens(fields, config);
  PERCHERON_RETURN_IF_ERROR(fields.status());

  const std::string generation_path = join_path(directory, "generation_config.json");
  if (files.exists(generation_path)) {
    PERCHERON_ASSIGN_OR_RETURN(const std::string generation_text, files.read_text(generation_path));
    PERCHERON_ASSIGN_OR_RETURN(const json generation, parse_json(generation_text, generation_path));
    ConfigFields generation_fields(generation, generation_path);
    std::vector<int64_t> stops = read_token_ids(generation_fields, "eos_token_id");
    PERCHERON_RETURN_IF_ERROR(generation_fields.status());
    if (!stops.empty()) config.eos_token_ids = std::move(stops);
  }
  return config;
}

}  // namespace percheron
