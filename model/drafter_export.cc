#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "kernels/ops.h"
#include "model/drafter_files.h"
#include "model/frozen_head.h"
#include "model/parameter_list.h"

namespace percheron {
namespace {

constexpr std::string_view kHead = "lm_head.weight";

HostTensor bf16_tensor(std::string name, std::span<const int64_t> shape,
                       std::span<const float> values) {
  HostTensor tensor{std::move(name), DType::kBf16, {shape.begin(), shape.end()}, {}};
  tensor.bytes.resize(values.size() * sizeof(uint16_t));
  auto* bits = reinterpret_cast<uint16_t*>(tensor.bytes.data());
  for (size_t i = 0; i < values.size(); ++i) bits[i] = bf16_from_float(values[i]);
  return tensor;
}

template <class T>
HostTensor integer_tensor(std::string name, DType dtype, std::span<const T> values) {
  HostTensor tensor{std::move(name), dtype, {static_cast<int64_t>(values.size())}, {}};
  tensor.bytes.resize(values.size_bytes());
  std::memcpy(tensor.bytes.data(), values.data(), values.size_bytes());
  return tensor;
}

Result<std::vector<float>> parameter_values(Context& context, const Parameter& parameter) {
  PERCHERON_ASSIGN_OR_RETURN(std::vector<float> values,
                             to_host<float>(context, parameter.value.view()));
  if (const int64_t at = first_not_finite(view_of(std::span<const float>(values))); at >= 0) {
    return data_loss(fmt::format("the drafter's {} is {} at element {}; nothing is written",
                                 parameter.name, values[static_cast<size_t>(at)], at));
  }
  return values;
}

Status check_complete(const DrafterConfig& config, std::span<const HostTensor> tensors) {
  for (const ExpectedTensor& wanted : drafter_tensors(config)) {
    const auto found = std::ranges::find(tensors, wanted.name, &HostTensor::name);
    if (found == tensors.end()) {
      return invalid_argument(fmt::format("export: {} is missing", wanted.name));
    }
    if (found->shape != wanted.shape) {
      return invalid_argument(fmt::format("export: {} is [{}] instead of [{}]", wanted.name,
                                          fmt::join(found->shape, ", "),
                                          fmt::join(wanted.shape, ", ")));
    }
  }
  return ok_status();
}

// d2t and t2d, which every engine needs to make the drafter's rows the target's tokens.
Status add_vocabulary(const DrafterConfig& config, std::span<const int32_t> draft_ids,
                      std::vector<HostTensor>& tensors) {
  const bool whole = config.draft_vocab_size == config.body.vocab_size;
  if (whole && draft_ids.empty()) return ok_status();
  if (static_cast<int64_t>(draft_ids.size()) != config.draft_vocab_size) {
    return invalid_argument(
        fmt::format("export: a draft vocabulary of {} tokens needs its map, but {} ids are known",
                    config.draft_vocab_size, draft_ids.size()));
  }
  std::vector<int64_t> d2t(draft_ids.size());
  std::vector<uint8_t> t2d(static_cast<size_t>(config.body.vocab_size), 0);
  for (size_t i = 0; i < draft_ids.size(); ++i) {
    const bool ascending = i == 0 || draft_ids[i - 1] < draft_ids[i];
    if (draft_ids[i] < 0 || draft_ids[i] >= config.body.vocab_size || !ascending) {
      return invalid_argument(
          fmt::format("export: draft token {} is target id {}: ids must ascend and lie below {}", i,
                      draft_ids[i], config.body.vocab_size));
    }
    d2t[i] = draft_ids[i] - static_cast<int64_t>(i);
    t2d[static_cast<size_t>(draft_ids[i])] = 1;
  }
  if (whole) return ok_status();
  tensors.push_back(integer_tensor<int64_t>("d2t", DType::kI64, d2t));
  tensors.push_back(integer_tensor<uint8_t>("t2d", DType::kBool, t2d));
  return ok_status();
}

}  // namespace

Result<std::vector<HostTensor>> snapshot_drafter(Context& context, const Drafter& drafter,
                                                 const TargetParts& target) {
  std::vector<HostTensor> tensors;
  for (const std::unique_ptr<Parameter>& parameter : drafter.parameters()) {
    PERCHERON_ASSIGN_OR_RETURN(const std::vector<float> values,
                               parameter_values(context, *parameter));
    tensors.push_back(bf16_tensor(parameter->name, parameter->value.view().shape(), values));
  }
  for (const ExpectedTensor& wanted : drafter_tensors(drafter.config())) {
    if (wanted.name != kHead ||
        std::ranges::find(tensors, wanted.name, &HostTensor::name) != tensors.end())
      continue;
    PERCHERON_ASSIGN_OR_RETURN(const std::vector<float> values,
                               head_rows(context, target.head, drafter.draft_ids()));
    tensors.push_back(bf16_tensor(wanted.name, wanted.shape, values));
  }
  PERCHERON_RETURN_IF_ERROR(check_complete(drafter.config(), tensors));
  return tensors;
}

std::vector<NamedTensor> EncodedDrafter::views() const {
  std::vector<NamedTensor> named;
  for (const HostTensor& tensor : tensors) named.push_back({tensor.name, tensor.view()});
  return named;
}

Result<EncodedDrafter> encode_drafter(const DrafterConfig& config, std::vector<HostTensor> tensors,
                                      std::span<const int32_t> draft_ids, ConstTensorView embedding,
                                      const ConfigExport& options) {
  PERCHERON_RETURN_IF_ERROR(check_complete(config, tensors));
  EncodedDrafter encoded;
  PERCHERON_ASSIGN_OR_RETURN(encoded.config_text, drafter_config_text(config, options));
  encoded.metadata = {{"format", "pt"}};
  for (HostTensor& tensor : tensors) {
    if (tensor.dtype == DType::kBf16) continue;
    tensor = bf16_tensor(std::move(tensor.name), tensor.shape, to_floats(tensor.view()));
  }
  encoded.tensors = std::move(tensors);
  const bool eagle3 = config.kind == DrafterKind::kEagle3;
  if (eagle3 && options.layout == DrafterLayout::kSpeculators) {
    for (HostTensor& tensor : encoded.tensors) {
      if (tensor.name.starts_with("midlayer.")) tensor.name = "layers.0." + tensor.name.substr(9);
    }
  }
  PERCHERON_RETURN_IF_ERROR(add_vocabulary(config, draft_ids, encoded.tensors));
  if (!eagle3 || options.layout == DrafterLayout::kOwn) return encoded;
  if (!embedding.present() || !is_weight_dtype(embedding.dtype()) || embedding.rank() != 2 ||
      embedding.dim(0) != config.body.vocab_size || embedding.dim(1) != config.body.hidden_size) {
    return invalid_argument(fmt::format(
        "export: this layout carries the target's embedding, [{}, {}] F32, F16 or BF16, "
        "not {}",
        config.body.vocab_size, config.body.hidden_size, describe(embedding)));
  }
  encoded.tensors.push_back(
      bf16_tensor("embed_tokens.weight", embedding.shape(), to_floats(embedding)));
  return encoded;
}

Status write_drafter(FileSystem& files, const std::string& directory,
                     const EncodedDrafter& drafter) {
  PERCHERON_RETURN_IF_ERROR(files.create_directories(directory));
  const std::vector<NamedTensor> views = drafter.views();
  PERCHERON_RETURN_IF_ERROR(
      write_safetensors(files, join_path(directory, "model.safetensors"), views, drafter.metadata));
  return write_text_atomically(files, join_path(directory, "config.json"), drafter.config_text);
}

}  // namespace percheron
