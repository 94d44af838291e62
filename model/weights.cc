#include "model/weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"

namespace percheron {
namespace {

constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kSingleName = "model.safetensors";

// Multimodal and base-model checkpoints nest the same tensors under different prefixes.
std::string without_prefixes(std::string_view name) {
  bool cut = true;
  while (cut) {
    cut = false;
    for (const std::string_view prefix : {"model.", "language_model."}) {
      if (name.starts_with(prefix)) {
        name.remove_prefix(prefix.size());
        cut = true;
      }
    }
  }
  return std::string(name);
}

std::span<const std::byte> bytes_of(const ConstTensorView& view) {
  return {static_cast<const std::byte*>(view.data()), view.bytes()};
}

Status nothing_to_load(FileSystem& files, const std::string& directory) {
  std::string hint = "is it a Hugging Face model directory?";
  const Result<std::vector<std::string>> names = files.list(directory);
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    if (name.ends_with(".bin") || name.ends_with(".pth") || name.ends_with(".gguf")) {
      hint = fmt::format("{} is not read, convert it to safetensors", name);
      break;
    }
  }
  return not_found(
      fmt::format("{} has neither {} nor {}: {}", directory, kSingleName, kIndexName, hint));
}

}  // namespace

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config) {
  const int64_t hidden = config.hidden_size, width = config.intermediate_size;
  const int64_t query = config.num_attention_heads * config.head_dim;
  const int64_t key = config.num_key_value_heads * config.head_dim;
  std::vector<ExpectedTensor> tensors;
  tensors.push_back({"embed_tokens.weight", {config.vocab_size, hidden}});
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const std::string layer = fmt::format("layers.{}.", i);
    const auto linear = [&](std::string_view name, int64_t out, int64_t in, bool bias) {
      tensors.push_back({fmt::format("{}{}.weight", layer, name), {out, in}});
      if (bias) tensors.push_back({fmt::format("{}{}.bias", layer, name), {out}});
    };
    tensors.push_back({layer + "input_layernorm.weight", {hidden}});
    linear("self_attn.q_proj", query, hidden, config.qkv_bias);
    linear("self_attn.k_proj", key, hidden, config.qkv_bias);
    linear("self_attn.v_proj", key, hidden, config.qkv_bias);
    if (config.qk_norm) {
      tensors.push_back({layer + "self_attn.q_norm.weight", {config.head_dim}});
      tensors.push_back({layer + "self_attn.k_norm.weight", {config.head_dim}});
    }
    linear("self_attn.o_proj", hidden, query, config.o_bias);
    tensors.push_back({layer + "post_attention_layernorm.weight", {hidden}});
    linear("mlp.gate_proj", width, hidden, config.mlp_bias);
    linear("mlp.up_proj", width, hidden, config.mlp_bias);
    linear("mlp.down_proj", hidden, width, config.mlp_bias);
  }
  tensors.push_back({"norm.weight", {hidden}});
  if (!config.tie_word_embeddings) {
    tensors.push_back({"lm_head.weight", {config.vocab_size, hidden}});
  }
  return tensors;
}

Result<WeightFiles> WeightFiles::open(FileSystem& files, const std::string& directory) {
  WeightFiles weights;
  weights.directory_ = directory;
  const std::string single = join_path(directory, kSingleName);
  const std::string index = join_path(directory, kIndexName);
  if (files.exists(single)) {
    PERCHERON_RETURN_IF_ERROR(weights.add_file(files, single));
  } else if (files.exists(index)) {
    PERCHERON_RETURN_IF_ERROR(weights.add_shards(files, directory, index));
  } else {
    return nothing_to_load(files, directory);
  }
  return weights;
}

Status WeightFiles::add_file(FileSystem& files, const std::string& path) {
  PERCHERON_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(files, path));
  files_.push_back(std::move(file));
  for (const auto& [stored_name, view] : files_.back().tensors()) {
    const Entry entry = {view, stored_name, files_.size() - 1};
    const auto [present, added] = tensors_.emplace(without_prefixes(stored_name), entry);
    if (!added) {
      return data_loss(fmt::format("{} and {} are the same tensor stored twice: remove one",
                                   where(present->second), where(entry)));
    }
  }
  return ok_status();
}

Status WeightFiles::add_shards(FileSystem& files, const std::string& directory,
                               const std::string& index_path) {
  PERCHERON_ASSIGN_OR_RETURN(const std::string text, files.read_text(index_path));
  PERCHERON_ASSIGN_OR_RETURN(const nlohmann::json index, parse_json(text, index_path));
  PERCHERON_ASSIGN_OR_RETURN(const nlohmann::json* map,
                             json_object(index, "weight_map", index_path));
  std::set<std::string> shards;
  for (const auto& [name, shard] : map->items()) {
    PERCHERON_ASSIGN_OR_RETURN(const std::string file,
                               json_get<std::string>(*map, name, index_path));
    if (file.empty() || file.find('/') != std::string::npos) {
      return invalid_argument(
          fmt::format("{}: tensor '{}' lies in '{}', which is no file of this directory",
                      index_path, name, file));
    }
    shards.insert(file);
  }
  for (const std::string& shard : shards) {
    const std::string path = join_path(directory, shard);
    if (!files.exists(path)) {
      return not_found(
          fmt::format("{} is missing, {} names it: download it again", path, index_path));
    }
    PERCHERON_RETURN_IF_ERROR(add_file(files, path));
  }
  for (const auto& [name, shard] : map->items()) {
    const auto found = tensors_.find(without_prefixes(name));
    if (found == tensors_.end() ||
        files_[found->second.file].path() != join_path(directory, shard.get<std::string>())) {
      return data_loss(fmt::format("{} does not hold tensor '{}', though {} says so",
                                   join_path(directory, shard.get<std::string>()), name,
                                   index_path));
    }
  }
  return ok_status();
}

std::string WeightFiles::where(const Entry& entry) const {
  return fmt::format("{}: tensor '{}'", files_[entry.file].path(), entry.stored_name);
}

ConstTensorView WeightFiles::view(const std::string& name) const {
  const auto found = tensors_.find(name);
  PERCHERON_CHECK(found != tensors_.end(), "tensors are read after check() has seen them");
  return found->second.view;
}

Status WeightFiles::check_tensor(const ExpectedTensor& expected) const {
  const auto found = tensors_.find(expected.name);
  if (found == tensors_.end()) {
    const std::string hint = expected.name == "lm_head.weight"
                                 ? "; if the model ties its head to the embedding, "
                                   "config.json must say \"tie_word_embeddings\": true"
                                 : "; config.json asks for it";
    return invalid_argument(fmt::format(
        "{}: tensor '{}' is missing{}", files_.size() == 1 ? files_[0].path() : directory_,
        expected.name == "lm_head.weight" ? expected.name : "model." + expected.name, hint));
  }
  const ConstTensorView& view = found->second.view;
  if (!is_weight_dtype(view.dtype())) {
    return invalid_argument(fmt::format("{} has type {}: supported are F32, F16 and BF16",
                                        where(found->second), dtype_name(view.dtype())));
  }
  if (!std::ranges::equal(view.shape(), expected.shape)) {
    return invalid_argument(fmt::format("{} has shape [{}], config.json asks for [{}]",
                                        where(found->second), fmt::join(view.shape(), ", "),
                                        fmt::join(expected.shape, ", ")));
  }
  const int64_t bad = first_not_finite(view);
  if (bad >= 0) {
    return data_loss(fmt::format("{} is not finite at element {}: the checkpoint is damaged",
                                 where(found->second), bad));
  }
  return ok_status();
}

Status WeightFiles::check_tied_head(const ModelConfig& config) const {
  const auto head = tensors_.find("lm_head.weight");
  if (!config.tie_word_embeddings || head == tensors_.end()) return ok_status();
  const ConstTensorView& embedding = view("embed_tokens.weight");
  if (head->second.view.dtype() == embedding.dtype() &&
      std::ranges::equal(bytes_of(head->second.view), bytes_of(embedding))) {
    return ok_status();
  }
  return invalid_argument(fmt::format(
      "{} differs from the embedding, though config.json says \"tie_word_embeddings\": true: "
      "set it to false to use this head, or remove the tensor",
      where(head->second)));
}

Status WeightFiles::check(const ModelConfig& config) {
  const std::vector<ExpectedTensor> expected = expected_tensors(config);
  ContentHash hash;
  std::set<std::string> known;
  for (const ExpectedTensor& tensor : expected) {
    PERCHERON_RETURN_IF_ERROR(check_tensor(tensor));
    const ConstTensorView& stored = view(tensor.name);
    hash.add_text(tensor.name);
    hash.add_text(describe(stored));
    hash.add(bytes_of(stored));
    known.insert(tensor.name);
  }
  PERCHERON_RETURN_IF_ERROR(check_tied_head(config));
  content_hash_ = hash.hex();
  if (config.tie_word_embeddings) known.insert("lm_head.weight");

  int64_t unknown = 0;
  std::string example;
  for (const auto& [name, entry] : tensors_) {
    // Old checkpoints store this table; it follows from the config.
    if (known.count(name) != 0 || name.ends_with("rotary_emb.inv_freq")) continue;
    ++unknown;
    if (example.empty()) example = entry.stored_name;
  }
  if (unknown > 0) {
    log_warning("{}: {} tensors are not part of a {} and are not used, such as '{}'", directory_,
                unknown, config.model_type, example);
  }
  return ok_status();
}

bool is_weight_dtype(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBf16;
}

std::vector<float> to_floats(const ConstTensorView& view) {
  PERCHERON_CHECK(view.contiguous(), "only a contiguous tensor is converted");
  std::vector<float> values(static_cast<size_t>(view.elements()));
  if (view.dtype() == DType::kF32) {
    if (!values.empty()) std::memcpy(values.data(), view.data(), view.bytes());
    return values;
  }
  PERCHERON_CHECK(is_weight_dtype(view.dtype()), "only float weights are converted");
  const uint16_t* bits = view.as<uint16_t>();
  const bool bf16 = view.dtype() == DType::kBf16;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = bf16 ? float_from_bf16(bits[i]) : float_from_f16(bits[i]);
  }
  return values;
}

}  // namespace percheron
