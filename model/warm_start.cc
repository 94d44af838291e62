#include "model/warm_start.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>

#include "model/frozen_head.h"
#include "model/parameter_list.h"

namespace percheron {
namespace {

/// A drafter's parameters by name, with their values in host memory while they are changed.
class Values {
 public:
  Values(Context& context, Drafter& drafter) : context_(context), drafter_(drafter) {
    for (const auto& parameter : drafter.parameters()) by_name_[parameter->name] = parameter.get();
  }

  Parameter* find(const std::string& name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
  }

  Result<std::vector<float>> read(const Parameter& parameter) const {
    return to_host<float>(context_, parameter.value.view());
  }

  Status write(const Parameter& parameter, std::span<const float> values) {
    const TensorView view = parameter.value.view();
    PERCHERON_CHECK(static_cast<int64_t>(values.size()) == view.elements(), "values must fit");
    context_.device.copy_bytes(context_.stream, view.data(), values.data(), view.bytes());
    PERCHERON_RETURN_IF_ERROR(context_.stream.wait_idle());
    report_.taken.push_back(parameter.name);
    return ok_status();
  }

  void leave(const std::string& name, std::string_view reason) {
    report_.left.push_back(fmt::format("{}: {}", name, reason));
  }

  Result<InitialValues> finish() {
    drafter_.weights_changed(context_);
    PERCHERON_RETURN_IF_ERROR(context_.stream.wait_idle());
    return std::move(report_);
  }

 private:
  Context& context_;
  Drafter& drafter_;
  std::map<std::string, Parameter*> by_name_;
  InitialValues report_;
};

Status take_head(Context& context, const Drafter& drafter, const Target& target, Values& values) {
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<float> weight,
                             to_host<float>(context, target.final_norm()));
  PERCHERON_RETURN_IF_ERROR(values.write(*values.find("norm.weight"), weight));
  const Parameter* head = values.find("lm_head.weight");
  if (head == nullptr || !head->trainable) return ok_status();
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<float> rows,
                             head_rows(context, target.head(), drafter.draft_ids()));
  return values.write(*head, rows);
}

// Adds the identity at the columns of the captured state that is deepest in the target.
Status take_fc(const Drafter& drafter, Values& values) {
  const DrafterConfig& config = drafter.config();
  const Parameter& fc = *values.find("fc.weight");
  const auto deepest = std::max_element(config.capture.begin(), config.capture.end());
  const int64_t begin = (deepest - config.capture.begin()) * config.target_hidden_size;
  const int64_t columns = fc.value.view().dim(1);
  PERCHERON_ASSIGN_OR_RETURN(std::vector<float> weight, values.read(fc));
  for (int64_t i = 0; i < std::min(config.body.hidden_size, config.target_hidden_size); ++i) {
    weight[static_cast<size_t>(i * columns + begin + i)] += 1.0f;
  }
  return values.write(fc, weight);
}

// A weight of the target's layer, if it has this shape; else nothing, and `values` says so.
Result<std::optional<std::vector<float>>> layer_weight(const Target& target, int64_t layer,
                                                       const std::string& source,
                                                       std::span<const int64_t> shape,
                                                       const std::string& name, Values& values) {
  PERCHERON_ASSIGN_OR_RETURN(HostWeight weight, target.layer_weight(layer, source));
  if (std::ranges::equal(weight.shape, shape)) return std::optional(std::move(weight.values));
  values.leave(name, fmt::format("the target's is [{}]", fmt::join(weight.shape, ", ")));
  return std::optional<std::vector<float>>();
}

// A whole parameter from a layer of the target.
Status take_weight(const Target& target, int64_t layer, const std::string& source,
                   const std::string& name, Values& values) {
  const Parameter* parameter = values.find(name);
  if (parameter == nullptr) return ok_status();
  PERCHERON_ASSIGN_OR_RETURN(
      const auto weight,
      layer_weight(target, layer, source, parameter->value.view().shape(), name, values));
  return weight.has_value() ? values.write(*parameter, *weight) : ok_status();
}

// The columns that read the hidden state, right of those that read the embedding.
Status take_hidden_half(const Target& target, int64_t layer, const std::string& source,
                        const std::string& name, Values& values) {
  const Parameter& parameter = *values.find(name);
  const int64_t rows = parameter.value.view().dim(0), columns = parameter.value.view().dim(1);
  const int64_t half = columns / 2;
  PERCHERON_ASSIGN_OR_RETURN(
      const auto weight,
      layer_weight(target, layer, source, std::vector<int64_t>{rows, half}, name, values));
  if (!weight.has_value()) return ok_status();
  PERCHERON_ASSIGN_OR_RETURN(std::vector<float> own, values.read(parameter));
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(weight->begin() + r * half, half, own.begin() + r * columns + half);
  }
  return values.write(parameter, own);
}

Status take_eagle3_layer(const Drafter& drafter, const Target& target, Values& values) {
  const int64_t last = target.config().num_hidden_layers - 1;
  const std::string own = "midlayer.";
  const bool same_norms = drafter.config().body.qk_norm == target.config().qk_norm;
  for (const char* part :
       {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"}) {
    if (!same_norms && std::string_view(part) != "self_attn.v_proj.weight") {
      values.leave(own + part, "only one of drafter and target has norms per head");
      continue;
    }
    PERCHERON_RETURN_IF_ERROR(take_hidden_half(target, last, part, own + part, values));
  }
  if (same_norms && target.config().qk_norm) {
    for (const char* part : {"self_attn.q_norm.weight", "self_attn.k_norm.weight"}) {
      PERCHERON_RETURN_IF_ERROR(take_weight(target, last, part, own + part, values));
    }
  }
  for (const char* part : {"self_attn.o_proj.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight",
                           "mlp.down_proj.weight", "post_attention_layernorm.weight"}) {
    PERCHERON_RETURN_IF_ERROR(take_weight(target, last, part, own + part, values));
  }
  return take_weight(target, last, "input_layernorm.weight", own + "hidden_norm.weight", values);
}

// Queries and keys stay random: they read other states through other norms.
Status take_dflash_layers(const Drafter& drafter, const Target& target, Values& values) {
  const int64_t count = drafter.config().body.num_hidden_layers;
  const int64_t first = target.config().num_hidden_layers - count;
  if (first < 0) {
    return invalid_argument(
        fmt::format("drafter.warm_start: {} draft layers can't be taken from a "
                    "target of {}",
                    count, target.config().num_hidden_layers));
  }
  for (int64_t i = 0; i < count; ++i) {
    for (const char* part : {"self_attn.v_proj.weight", "self_attn.o_proj.weight",
                             "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight",
                             "input_layernorm.weight", "post_attention_layernorm.weight"}) {
      PERCHERON_RETURN_IF_ERROR(
          take_weight(target, first + i, part, fmt::format("layers.{}.{}", i, part), values));
    }
  }
  return ok_status();
}

// Rows of the file's head go to the rows of the same tokens.
Status take_head_rows(const Drafter& drafter, const DrafterFile& file, const Parameter& head,
                      std::span<const float> stored, Values& values) {
  const int64_t columns = head.value.view().dim(1);
  const auto id_of = [](std::span<const int32_t> ids, int64_t row) {
    return ids.empty() ? row : int64_t{ids[static_cast<size_t>(row)]};
  };
  std::map<int64_t, int64_t> stored_row;
  for (int64_t r = 0; r < file.config.draft_vocab_size; ++r)
    stored_row[id_of(file.draft_ids, r)] = r;
  PERCHERON_ASSIGN_OR_RETURN(std::vector<float> weight, values.read(head));
  int64_t missing = 0;
  for (int64_t r = 0; r < head.value.view().dim(0); ++r) {
    const auto found = stored_row.find(id_of(drafter.draft_ids(), r));
    if (found == stored_row.end()) {
      ++missing;
      continue;
    }
    std::copy_n(stored.begin() + found->second * columns, columns, weight.begin() + r * columns);
  }
  if (missing > 0) {
    values.leave(head.name, fmt::format("{} of {} rows are tokens that the other vocabulary lacks",
                                        missing, head.value.view().dim(0)));
  }
  return values.write(head, weight);
}

}  // namespace

Result<InitialValues> warm_start(Context& context, Drafter& drafter, const Target& target,
                                 std::span<const WarmStart> parts) {
  Values values(context, drafter);
  const bool eagle3 = drafter.config().kind == DrafterKind::kEagle3;
  for (const WarmStart part : parts) {
    switch (part) {
      case WarmStart::kHead:
        PERCHERON_RETURN_IF_ERROR(take_head(context, drafter, target, values));
        break;
      case WarmStart::kFc: PERCHERON_RETURN_IF_ERROR(take_fc(drafter, values)); break;
      case WarmStart::kLayer:
        PERCHERON_RETURN_IF_ERROR(eagle3 ? take_eagle3_layer(drafter, target, values)
                                         : take_dflash_layers(drafter, target, values));
        break;
    }
  }
  return values.finish();
}

Result<InitialValues> init_from(Context& context, Drafter& drafter, const DrafterFile& file,
                                ConstTensorView embedding) {
  const DrafterConfig& config = drafter.config();
  if (file.config.kind != config.kind) {
    return invalid_argument(
        fmt::format("drafter.init_from: {} holds another kind of drafter", file.file.path()));
  }
  Values values(context, drafter);
  if (const Status status = check_embedding(file, embedding); !status.ok()) {
    values.leave("embed_tokens.weight", status.message());
  }
  bool any = false;
  for (const auto& parameter : drafter.parameters()) {
    const auto found = file.tensors.find(parameter->name);
    if (found == file.tensors.end()) {
      values.leave(parameter->name, "not in the file");
    } else if (!parameter->trainable) {
      values.leave(parameter->name, "frozen, the target's own");
    } else if (parameter->name == "fc.weight" && file.config.capture != config.capture) {
      values.leave(parameter->name, fmt::format("the file's reads layers [{}]",
                                                fmt::join(file.config.capture, ", ")));
    } else if (parameter->name == "lm_head.weight" &&
               found->second.dim(1) == parameter->value.view().dim(1)) {
      const std::vector<float> stored = to_floats(found->second);
      PERCHERON_RETURN_IF_ERROR(take_head_rows(drafter, file, *parameter, stored, values));
      any = true;
    } else if (!std::ranges::equal(found->second.shape(), parameter->value.view().shape())) {
      values.leave(parameter->name, fmt::format("the file's is {}", describe(found->second)));
    } else {
      PERCHERON_RETURN_IF_ERROR(values.write(*parameter, to_floats(found->second)));
      any = true;
    }
  }
  if (!any) {
    return invalid_argument(
        fmt::format("drafter.init_from: nothing in {} fits this drafter", file.file.path()));
  }
  return values.finish();
}

}  // namespace percheron
