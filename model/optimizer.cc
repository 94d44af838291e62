#include "model/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/ops.h"
#include "model/parameter_list.h"

namespace percheron {
namespace {

struct Slot {
  Parameter* parameter = nullptr;
  bool muon = false;
  Tensor first;   // exp_avg, or Muon's momentum
  Tensor second;  // exp_avg_sq
};

bool is_matrix_for_muon(const Parameter& parameter) {
  return parameter.value.view().rank() == 2 &&
         parameter.name.find("lm_head") == std::string::npos &&
         parameter.name.find("embed_tokens") == std::string::npos;
}

std::vector<int64_t> shape_of(const Tensor& tensor) {
  const std::span<const int64_t> shape = tensor.view().shape();
  return {shape.begin(), shape.end()};
}

class DrafterOptimizer : public Optimizer {
 public:
  explicit DrafterOptimizer(const OptimizerConfig& config) : config_(config) {}

  Status reserve(Context& context, std::span<const std::unique_ptr<Parameter>> parameters);
  Result<double> step(Context& context, double weight, double rate_factor) override;
  int64_t steps() const override { return steps_; }
  Result<OptimizerState> export_state(Context& context) const override;
  Status import_state(Context& context, const OptimizerState& state) override;

 private:
  struct NamedMoment {
    std::string name;
    const Tensor* tensor;
  };

  std::vector<NamedMoment> moments() const;
  Result<double> gradient_norm(Context& context, double weight, ConstTensorView squared_norm);
  Status not_finite(Context& context) const;
  void update(Context& context, Slot& slot, double rate_factor, ConstTensorView scale);

  OptimizerConfig config_;
  std::vector<Slot> slots_;
  int64_t steps_ = 0;
};

Status DrafterOptimizer::reserve(Context& context,
                                 std::span<const std::unique_ptr<Parameter>> parameters) {
  const Ops& ops = context.device.ops();
  for (const std::unique_ptr<Parameter>& parameter : parameters) {
    if (!parameter->trainable) continue;
    PERCHERON_CHECK(parameter->gradient.present(), "a trainable parameter has no gradient");
    Slot slot;
    slot.parameter = parameter.get();
    slot.muon = config_.kind == OptimizerKind::kMuon && is_matrix_for_muon(*parameter);
    const std::vector<int64_t> shape = shape_of(parameter->value);
    PERCHERON_ASSIGN_OR_RETURN(slot.first, context.device.make_tensor(DType::kF32, shape));
    ops.fill_zero(context, slot.first);
    if (!slot.muon) {
      PERCHERON_ASSIGN_OR_RETURN(slot.second, context.device.make_tensor(DType::kF32, shape));
      ops.fill_zero(context, slot.second);
    }
    slots_.push_back(std::move(slot));
  }
  return context.stream.wait_idle();
}

Result<double> DrafterOptimizer::step(Context& context, double weight, double rate_factor) {
  if (!(weight > 0) || !std::isfinite(weight)) {
    return invalid_argument(fmt::format(
        "step {} has weight {}: it must be positive, does the data have supervised tokens?",
        steps_ + 1, weight));
  }
  const Ops& ops = context.device.ops();
  Arena::Scope scope(context.arena);
  const TensorView squared_norm = context.arena.take(DType::kF64, {1});
  const TensorView scale = context.arena.take(DType::kF32, {1});
  ops.fill_zero(context, squared_norm);
  for (const Slot& slot : slots_) ops.squared_norm(context, slot.parameter->gradient, squared_norm);
  ops.clip_scale(context, squared_norm, weight, config_.clip_norm, scale);
  PERCHERON_ASSIGN_OR_RETURN(const double norm, gradient_norm(context, weight, squared_norm));
  ++steps_;
  for (Slot& slot : slots_) update(context, slot, rate_factor, scale);
  return norm;
}

Result<double> DrafterOptimizer::gradient_norm(Context& context, double weight,
                                               ConstTensorView squared_norm) {
  double sum = 0;
  context.device.copy_bytes(context.stream, &sum, squared_norm.data(), sizeof(sum));
  // The one wait of a step: nothing is applied before the host knows that the gradients are finite.
  PERCHERON_RETURN_IF_ERROR(context.stream.wait_idle());
  if (!std::isfinite(sum)) return not_finite(context);
  return std::sqrt(sum) / weight;
}

Status DrafterOptimizer::not_finite(Context& context) const {
  for (const Slot& slot : slots_) {
    PERCHERON_ASSIGN_OR_RETURN(const std::vector<float> values,
                               to_host<float>(context, slot.parameter->gradient));
    const auto bad = std::find_if_not(values.begin(), values.end(),
                                      [](float value) { return std::isfinite(value); });
    if (bad == values.end()) continue;
    return data_loss(
        fmt::format("step {}: the gradient of {} holds {} at element {}; the step is "
                    "not applied",
                    steps_ + 1, slot.parameter->name, *bad, bad - values.begin()));
  }
  return data_loss(
      fmt::format("step {}: the gradients' norm overflows; the step is not applied", steps_ + 1));
}

void DrafterOptimizer::update(Context& context, Slot& slot, double rate_factor,
                              ConstTensorView scale) {
  const Ops& ops = context.device.ops();
  Parameter& parameter = *slot.parameter;
  if (slot.muon) {
    muon_update(context, config_, rate_factor, scale, parameter.gradient, parameter.value,
                slot.first);
  } else {
    const AdamWSettings settings{
        .learning_rate = static_cast<float>(config_.learning_rate * rate_factor),
        .beta1 = static_cast<float>(config_.beta1),
        .beta2 = static_cast<float>(config_.beta2),
        .epsilon = static_cast<float>(config_.epsilon),
        .weight_decay = static_cast<float>(config_.weight_decay),
        .step = steps_};
    ops.adamw(context, settings, scale, parameter.gradient, parameter.value, slot.first,
              slot.second);
  }
  ops.fill_zero(context, parameter.gradient);
}

std::vector<DrafterOptimizer::NamedMoment> DrafterOptimizer::moments() const {
  std::vector<NamedMoment> moments;
  for (const Slot& slot : slots_) {
    const std::string& name = slot.parameter->name;
    if (slot.muon) {
      moments.push_back({"momentum." + name, &slot.first});
    } else {
      moments.push_back({"exp_avg." + name, &slot.first});
      moments.push_back({"exp_avg_sq." + name, &slot.second});
    }
  }
  return moments;
}

Result<OptimizerState> DrafterOptimizer::export_state(Context& context) const {
  OptimizerState state;
  state.steps = steps_;
  for (const NamedMoment& moment : moments()) {
    PERCHERON_ASSIGN_OR_RETURN(std::vector<float> values, to_host<float>(context, *moment.tensor));
    state.moments[moment.name] = {shape_of(*moment.tensor), std::move(values)};
  }
  return state;
}

Status DrafterOptimizer::import_state(Context& context, const OptimizerState& state) {
  const std::vector<NamedMoment> wanted = moments();
  if (state.steps < 0) {
    return data_loss(fmt::format("the optimizer's state counts {} steps", state.steps));
  }
  for (const NamedMoment& moment : wanted) {
    const auto found = state.moments.find(moment.name);
    if (found == state.moments.end()) {
      return data_loss(
          fmt::format("the optimizer's state lacks {}: it was saved by another "
                      "optimizer or drafter",
                      moment.name));
    }
    const std::vector<int64_t> shape = shape_of(*moment.tensor);
    if (found->second.shape != shape ||
        found->second.values.size() != static_cast<size_t>(moment.tensor->view().elements())) {
      return data_loss(
          fmt::format("the optimizer's state has {} of shape [{}], but the drafter's "
                      "is [{}]",
                      moment.name, fmt::join(found->second.shape, ", "), fmt::join(shape, ", ")));
    }
  }
  for (const auto& [name, moment] : state.moments) {
    const bool known = std::any_of(wanted.begin(), wanted.end(),
                                   [&](const NamedMoment& other) { return other.name == name; });
    if (!known) {
      return data_loss(
          fmt::format("the optimizer's state has {}, which this drafter does not "
                      "train",
                      name));
    }
  }
  for (const NamedMoment& moment : wanted) {
    const std::vector<float>& values = state.moments.at(moment.name).values;
    context.device.copy_bytes(context.stream, moment.tensor->view().data(), values.data(),
                              values.size() * sizeof(float));
  }
  steps_ = state.steps;
  return context.stream.wait_idle();
}

Status check_range(std::string_view name, double value, double low, double high) {
  if (value >= low && value <= high) return ok_status();
  return invalid_argument(
      fmt::format("optimizer.{} is {}; it must be within {} and {}", name, value, low, high));
}

}  // namespace

Status check_optimizer_config(const OptimizerConfig& config) {
  constexpr double kBelowOne = 1 - 1e-9;
  PERCHERON_RETURN_IF_ERROR(check_range("learning_rate", config.learning_rate, 0, 100));
  PERCHERON_RETURN_IF_ERROR(check_range("beta1", config.beta1, 0, kBelowOne));
  PERCHERON_RETURN_IF_ERROR(check_range("beta2", config.beta2, 0, kBelowOne));
  PERCHERON_RETURN_IF_ERROR(check_range("epsilon", config.epsilon, 1e-30, 1));
  PERCHERON_RETURN_IF_ERROR(check_range("weight_decay", config.weight_decay, 0, 100));
  PERCHERON_RETURN_IF_ERROR(check_range("clip_norm", config.clip_norm, 0, 1e30));
  PERCHERON_RETURN_IF_ERROR(check_range("muon_learning_rate", config.muon_learning_rate, 0, 100));
  PERCHERON_RETURN_IF_ERROR(check_range("muon_momentum", config.muon_momentum, 0, kBelowOne));
  PERCHERON_RETURN_IF_ERROR(check_range("muon_weight_decay", config.muon_weight_decay, 0, 100));
  return check_range("newton_schulz_steps", config.newton_schulz_steps, 1, 100);
}

Result<std::unique_ptr<Optimizer>> Optimizer::make(
    Context& context, const OptimizerConfig& config,
    std::span<const std::unique_ptr<Parameter>> parameters) {
  PERCHERON_RETURN_IF_ERROR(check_optimizer_config(config));
  auto optimizer = std::make_unique<DrafterOptimizer>(config);
  PERCHERON_RETURN_IF_ERROR(optimizer->reserve(context, parameters));
  return std::unique_ptr<Optimizer>(std::move(optimizer));
}

void zero_gradients(Context& context, std::span<const std::unique_ptr<Parameter>> parameters) {
  for (const std::unique_ptr<Parameter>& parameter : parameters) {
    if (parameter->trainable) context.device.ops().fill_zero(context, parameter->gradient);
  }
}

}  // namespace percheron
