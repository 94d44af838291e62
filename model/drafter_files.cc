#include "model/drafter_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "data/vocabulary_map.h"

namespace percheron {
namespace {

constexpr std::string_view kHead = "lm_head.weight";
constexpr std::string_view kEmbedding = "embed_tokens.weight";

void add_layer(const DrafterConfig& config, const std::string& prefix, int64_t inputs,
               std::vector<ExpectedTensor>& tensors) {
  const ModelConfig& body = config.body;
  const int64_t hidden = body.hidden_size, inner = body.intermediate_size;
  const int64_t queries = body.num_attention_heads * body.head_dim;
  const int64_t keys = body.num_key_value_heads * body.head_dim;
  const auto add = [&](std::string_view name, std::vector<int64_t> shape) {
    tensors.push_back({fmt::format("{}{}.weight", prefix, name), std::move(shape)});
  };
  if (config.kind == DrafterKind::kEagle3) add("hidden_norm", {hidden});
  add("input_layernorm", {hidden});
  add("self_attn.q_proj", {queries, inputs});
  add("self_attn.k_proj", {keys, inputs});
  add("self_attn.v_proj", {keys, inputs});
  add("self_attn.o_proj", {hidden, queries});
  if (body.qk_norm) {
    add("self_attn.q_norm", {body.head_dim});
    add("self_attn.k_norm", {body.head_dim});
  }
  add("post_attention_layernorm", {hidden});
  add("mlp.gate_proj", {inner, hidden});
  add("mlp.up_proj", {inner, hidden});
  add("mlp.down_proj", {hidden, inner});
}

bool whole_vocabulary(const DrafterConfig& config) {
  return config.draft_vocab_size == config.body.vocab_size;
}

// Our spelling of a stored name: without "model.", and EAGLE-3's one layer is "midlayer".
std::string our_name(DrafterKind kind, std::string name) {
  if (name.starts_with("model.")) name = name.substr(6);
  if (kind == DrafterKind::kEagle3 && name.starts_with("layers.0."))
    name = "midlayer." + name.substr(9);
  return name;
}

Status check_fc_width(const DrafterConfig& config, const SafetensorsFile& file,
                      const std::map<std::string, ConstTensorView>& stored) {
  const auto fc = stored.find("fc.weight");
  if (fc == stored.end() || fc->second.rank() != 2) return ok_status();
  const int64_t width = config.target_hidden_size;
  const auto count = static_cast<int64_t>(config.capture.size());
  if (fc->second.dim(1) == count * width) return ok_status();
  return invalid_argument(fmt::format(
      "{}: fc.weight has {} columns, but the config lists {} captured layers of {}, [{}]",
      file.path(), fc->second.dim(1), count, width, fmt::join(config.capture, ", ")));
}

Status check_tensor(const ExpectedTensor& wanted, const SafetensorsFile& file,
                    const std::map<std::string, ConstTensorView>& stored) {
  const auto found = stored.find(wanted.name);
  if (found == stored.end()) {
    return invalid_argument(fmt::format("{}: {} is missing", file.path(), wanted.name));
  }
  const ConstTensorView& view = found->second;
  if (!is_weight_dtype(view.dtype()) || !std::ranges::equal(view.shape(), wanted.shape)) {
    return invalid_argument(
        fmt::format("{}: {} is {}, but the config makes it [{}], F32, BF16 or F16", file.path(),
                    wanted.name, describe(view), fmt::join(wanted.shape, ", ")));
  }
  if (const int64_t at = first_not_finite(view); at >= 0) {
    return data_loss(
        fmt::format("{}: {} is not finite at element {}", file.path(), wanted.name, at));
  }
  return ok_status();
}

// The vocabulary map must be there, and fit, whenever the head has fewer rows than the target's.
Status read_vocabulary(DrafterFile& drafter) {
  const SafetensorsFile& file = drafter.file;
  const bool whole = whole_vocabulary(drafter.config);
  if (whole && !file.contains("d2t") && !file.contains("t2d")) return ok_status();
  const Result<DraftVocabulary> vocabulary =
      DraftVocabulary::read(file, drafter.config.body.vocab_size);
  if (!vocabulary.ok()) {
    return Status(vocabulary.status().code() == StatusCode::kNotFound ? StatusCode::kInvalidArgument
                                                                      : vocabulary.status().code(),
                  vocabulary.status().message())
        .with_context(
            fmt::format("the draft vocabulary of {} tokens", drafter.config.draft_vocab_size));
  }
  if (vocabulary->size() != drafter.config.draft_vocab_size) {
    return invalid_argument(fmt::format("{}: d2t lists {} tokens, but \"draft_vocab_size\" is {}",
                                        file.path(), vocabulary->size(),
                                        drafter.config.draft_vocab_size));
  }
  if (!whole) {
    drafter.draft_ids.assign(vocabulary->target_ids().begin(), vocabulary->target_ids().end());
  }
  return ok_status();
}

// Sorts the stored tensors into the drafter's own, copies of the target's, and strangers.
Status take_tensors(DrafterFile& drafter, std::map<std::string, ConstTensorView> stored) {
  for (const ExpectedTensor& wanted : drafter_tensors(drafter.config)) {
    PERCHERON_RETURN_IF_ERROR(check_tensor(wanted, drafter.file, stored));
    drafter.tensors.insert(stored.extract(wanted.name));
  }
  const std::vector<int64_t> table = {drafter.config.body.vocab_size,
                                      drafter.config.target_hidden_size};
  for (const auto& [name, view] : stored) {
    if (name == "d2t" || name == "t2d") continue;
    if (name != kEmbedding && name != kHead) {
      return invalid_argument(fmt::format("{}: {} ({}) is no tensor of this drafter",
                                          drafter.file.path(), name, describe(view)));
    }
    PERCHERON_RETURN_IF_ERROR(check_tensor({name, table}, drafter.file, stored));
    drafter.skipped.push_back(name);
    if (name == kEmbedding) drafter.embedding = view;
  }
  return ok_status();
}

}  // namespace

std::vector<ExpectedTensor> drafter_tensors(const DrafterConfig& config) {
  const int64_t hidden = config.body.hidden_size;
  const auto captured = static_cast<int64_t>(config.capture.size());
  const bool eagle3 = config.kind == DrafterKind::kEagle3;
  std::vector<ExpectedTensor> tensors;
  tensors.push_back({"fc.weight", {hidden, captured * config.target_hidden_size}});
  if (eagle3) {
    if (config.norm_before_fc)
      tensors.push_back({"input_norm.weight", {captured * config.target_hidden_size}});
    for (int64_t i = 0; config.fc_norm && i < captured; ++i) {
      tensors.push_back({fmt::format("fc_norm.{}.weight", i), {config.target_hidden_size}});
    }
    add_layer(config, "midlayer.", 2 * hidden, tensors);
  } else {
    tensors.push_back({"hidden_norm.weight", {hidden}});
    for (int64_t i = 0; i < config.body.num_hidden_layers; ++i) {
      add_layer(config, fmt::format("layers.{}.", i), hidden, tensors);
    }
  }
  tensors.push_back({"norm.weight", {hidden}});
  if (eagle3 || !whole_vocabulary(config)) {
    tensors.push_back({std::string(kHead), {config.draft_vocab_size, hidden}});
  }
  return tensors;
}

Result<DrafterFile> read_drafter(FileSystem& files, const std::string& directory,
                                 const ModelConfig* target) {
  const std::string config_path = join_path(directory, "config.json");
  PERCHERON_ASSIGN_OR_RETURN(const std::string text, files.read_text(config_path));
  PERCHERON_ASSIGN_OR_RETURN(const StatedDrafter stated, parse_drafter_config(text, config_path));
  DrafterFile drafter;
  drafter.config = stated.config;
  drafter.layout = stated.layout;
  if (target != nullptr) {
    PERCHERON_RETURN_IF_ERROR(match_target(drafter.config, *target, config_path));
  } else if (drafter.config.capture.empty()) {
    return invalid_argument(fmt::format(
        "{}: the captured layers are not stated; they follow from the target, which is not given",
        config_path));
  }
  PERCHERON_ASSIGN_OR_RETURN(
      drafter.file, SafetensorsFile::open(files, join_path(directory, "model.safetensors")));
  std::map<std::string, ConstTensorView> stored;
  for (const auto& [name, view] : drafter.file.tensors()) {
    const std::string ours = our_name(drafter.config.kind, name);
    if (!stored.emplace(ours, view).second) {
      return invalid_argument(
          fmt::format("{}: {} is stored twice, under two names", drafter.file.path(), ours));
    }
  }
  PERCHERON_RETURN_IF_ERROR(check_fc_width(drafter.config, drafter.file, stored));
  PERCHERON_RETURN_IF_ERROR(take_tensors(drafter, std::move(stored)));
  PERCHERON_RETURN_IF_ERROR(read_vocabulary(drafter));
  if (drafter.layout == DrafterLayout::kOwn && drafter.config.kind == DrafterKind::kEagle3 &&
      drafter.embedding.present()) {
    drafter.layout = DrafterLayout::kSpecforgeHf;
  }
  return drafter;
}

Status check_embedding(const DrafterFile& file, ConstTensorView embedding) {
  if (!file.embedding.present()) return ok_status();
  if (!is_weight_dtype(embedding.dtype()) ||
      !std::ranges::equal(file.embedding.shape(), embedding.shape())) {
    return invalid_argument(fmt::format("{}: embed_tokens.weight is {}, but the target's is {}",
                                        file.file.path(), describe(file.embedding),
                                        describe(embedding)));
  }
  const std::vector<float> own = to_floats(file.embedding), wanted = to_floats(embedding);
  for (size_t i = 0; i < own.size(); ++i) {
    if (own[i] == float_from_bf16(bf16_from_float(wanted[i])) || own[i] == wanted[i]) continue;
    const int64_t columns = embedding.dim(1);
    return invalid_argument(
        fmt::format("{}: embed_tokens.weight differs from the target's at row {} ({} instead of "
                    "{}): it belongs "
                    "to another target, or was trained, which is not supported",
                    file.file.path(), static_cast<int64_t>(i) / columns, own[i], wanted[i]));
  }
  return ok_status();
}

}  // namespace percheron
