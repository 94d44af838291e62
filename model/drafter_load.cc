#include <fmt/format.h>

#include <algorithm>

#include "model/drafter_files.h"

namespace percheron {
namespace {

// A head that the file states but the drafter borrows from the target must be the target's.
Status check_borrowed_head(const DrafterFile& file, ConstTensorView stored,
                           std::span<const float> wanted) {
  const std::vector<float> values = to_floats(stored);
  PERCHERON_CHECK(values.size() == wanted.size(), "the head's shape was checked before");
  for (size_t i = 0; i < values.size(); ++i) {
    const float rounded = float_from_bf16(bf16_from_float(wanted[i]));
    if (values[i] == wanted[i] || values[i] == rounded) continue;
    return invalid_argument(
        fmt::format("{}: lm_head.weight differs from the target's head at draft "
                    "row {}: a DFlash drafter drafts with the target's",
                    file.file.path(), static_cast<int64_t>(i) / stored.dim(1)));
  }
  return ok_status();
}

}  // namespace

Status load_parameters(Context& context, Drafter& drafter,
                       const std::map<std::string, ConstTensorView>& tensors) {
  for (const std::unique_ptr<Parameter>& parameter : drafter.parameters()) {
    const TensorView view = parameter->value.view();
    const auto found = tensors.find(parameter->name);
    if (found == tensors.end()) {
      if (!parameter->trainable) continue;  // The target's own, there already.
      return invalid_argument(fmt::format("the drafter's {} is missing", parameter->name));
    }
    if (!std::ranges::equal(found->second.shape(), view.shape())) {
      return invalid_argument(fmt::format("the drafter's {} is {}, but {} is wanted",
                                          parameter->name, describe(found->second),
                                          describe(view)));
    }
    const std::vector<float> values = to_floats(found->second);
    context.device.copy_bytes(context.stream, view.data(), values.data(), view.bytes());
    PERCHERON_RETURN_IF_ERROR(context.stream.wait_idle());
  }
  drafter.weights_changed(context);
  return context.stream.wait_idle();
}

Result<std::unique_ptr<Drafter>> make_drafter_from_file(Context& context, const DrafterFile& file,
                                                        const TargetParts& target,
                                                        DType compute_dtype) {
  PERCHERON_ASSIGN_OR_RETURN(
      std::unique_ptr<Drafter> drafter,
      make_drafter(context, file.config, target, file.draft_ids, compute_dtype, 0));
  PERCHERON_RETURN_IF_ERROR(load_parameters(context, *drafter, file.tensors));
  const auto head = file.tensors.find("lm_head.weight");
  const auto own = std::ranges::find(drafter->parameters(), "lm_head.weight",
                                     [](const auto& parameter) { return parameter->name; });
  if (head == file.tensors.end() || own != drafter->parameters().end()) return drafter;
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<HostTensor> whole,
                             snapshot_drafter(context, *drafter, target));
  const auto borrowed = std::ranges::find(whole, "lm_head.weight", &HostTensor::name);
  PERCHERON_CHECK(borrowed != whole.end(), "a reduced vocabulary has a head");
  PERCHERON_RETURN_IF_ERROR(check_borrowed_head(file, head->second, to_floats(borrowed->view())));
  return drafter;
}

}  // namespace percheron
