#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/json.h"
#include "model/optimizer.h"
#include "model/schedule.h"
#include "tests/golden/golden_device.h"
#include "tests/golden/runner.h"
#include "tests/golden/tensors.h"

namespace percheron::golden {
namespace {

using nlohmann::json;
using Parameters = std::vector<std::unique_ptr<Parameter>>;

// One parameter per tensor "initial.NAME".
Result<Parameters> initial_parameters(Context& context, const SafetensorsFile& file) {
  constexpr std::string_view kPrefix = "initial.";
  Parameters parameters;
  for (const auto& [name, view] : file.tensors()) {
    if (!name.starts_with(kPrefix)) continue;
    auto parameter = std::make_unique<Parameter>();
    parameter->name = name.substr(kPrefix.size());
    PERCHERON_ASSIGN_OR_RETURN(const std::vector<float> values, read_floats(file, name));
    PERCHERON_ASSIGN_OR_RETURN(parameter->value,
                               context.device.make_tensor(DType::kF32, view.shape()));
    PERCHERON_ASSIGN_OR_RETURN(parameter->gradient,
                               context.device.make_tensor(DType::kF32, view.shape()));
    context.device.copy_bytes(context.stream, parameter->value.view().data(), values.data(),
                              values.size() * sizeof(float));
    PERCHERON_RETURN_IF_ERROR(context.stream.wait_idle());
    parameters.push_back(std::move(parameter));
  }
  return parameters;
}

// Gradients as sums of a step of weight `weight`.
Status load_gradients(Context& context, const SafetensorsFile& file, int64_t step, float weight,
                      Parameters& parameters) {
  for (const auto& parameter : parameters) {
    const std::string name = fmt::format("grad.{}.{}", step, parameter->name);
    PERCHERON_ASSIGN_OR_RETURN(std::vector<float> values, read_floats(file, name));
    if (static_cast<int64_t>(values.size()) != parameter->gradient.view().elements()) {
      return invalid_argument(fmt::format("{}: {} has {} elements, {} has another number",
                                          file.path(), name, values.size(), parameter->name));
    }
    for (float& value : values) value *= weight;
    context.device.copy_bytes(context.stream, parameter->gradient.view().data(), values.data(),
                              values.size() * sizeof(float));
    PERCHERON_RETURN_IF_ERROR(context.stream.wait_idle());
  }
  return ok_status();
}

// An F32 or F64 tensor.
Result<std::vector<double>> read_numbers(const SafetensorsFile& file, const std::string& name) {
  PERCHERON_ASSIGN_OR_RETURN(const ConstTensorView view, file.tensor(name));
  if (view.dtype() == DType::kF64) {
    const double* values = view.as<double>();
    return std::vector<double>(values, values + view.elements());
  }
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<float> values, read_floats(file, name));
  return std::vector<double>(values.begin(), values.end());
}

double largest_of(const std::vector<float>& actual, const std::vector<double>& expected) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (actual.size() != expected.size()) return kInfinity;
  double largest = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double difference = std::abs(double{actual[i]} - expected[i]);
    largest = difference <= kInfinity ? std::max(largest, difference) : kInfinity;
  }
  return largest;
}

Status compare_values(GoldenDevice& device, const SafetensorsFile& file, const std::string& prefix,
                      const Parameters& parameters, double tolerance, Report& report) {
  for (const auto& parameter : parameters) {
    const std::string name = prefix + parameter->name;
    PERCHERON_ASSIGN_OR_RETURN(const std::vector<float> actual,
                               device.to_host<float>(parameter->value.view()));
    PERCHERON_ASSIGN_OR_RETURN(const std::vector<double> expected, read_numbers(file, name));
    report.differences.push_back({name, largest_of(actual, expected), tolerance});
  }
  return ok_status();
}

Result<OptimizerConfig> adamw_config(const SafetensorsFile& file) {
  OptimizerConfig config;
  PERCHERON_ASSIGN_OR_RETURN(config.learning_rate, metadata_number(file, "lr"));
  PERCHERON_ASSIGN_OR_RETURN(config.epsilon, metadata_number(file, "eps"));
  PERCHERON_ASSIGN_OR_RETURN(config.weight_decay, metadata_number(file, "weight_decay"));
  PERCHERON_ASSIGN_OR_RETURN(const std::string betas_text, metadata_text(file, "betas"));
  PERCHERON_ASSIGN_OR_RETURN(const json betas_value, parse_json(betas_text, file.path()));
  const json object = {{"betas", betas_value}};
  PERCHERON_ASSIGN_OR_RETURN(const auto betas,
                             json_get<std::vector<double>>(object, "betas", file.path()));
  if (betas.size() != 2) return invalid_argument(file.path() + ": metadata 'betas' is no pair");
  config.beta1 = betas[0];
  config.beta2 = betas[1];
  config.clip_norm = 0;
  PERCHERON_ASSIGN_OR_RETURN(const std::string clip, metadata_text(file, "clip"));
  if (clip != "null") {
    PERCHERON_ASSIGN_OR_RETURN(config.clip_norm, metadata_number(file, "clip"));
  }
  return config;
}

Status compare_moments(Context& context, const Optimizer& optimizer, const SafetensorsFile& file,
                       double tolerance, Report& report) {
  PERCHERON_ASSIGN_OR_RETURN(const OptimizerState state, optimizer.export_state(context));
  for (const auto& [name, moment] : state.moments) {
    PERCHERON_ASSIGN_OR_RETURN(const std::vector<double> expected, read_numbers(file, name));
    // Without clipping, second moments reach tens, where one rounding of f32 is above the
    // tolerance.
    double scale = 1;
    for (const double value : expected) scale = std::max(scale, std::abs(value));
    report.differences.push_back({name, largest_of(moment.values, expected), tolerance * scale});
  }
  return ok_status();
}

// The schedules of transformers and SpecForge by the name that the file gives them.
Result<Schedule> named_schedule(const json& item) {
  const std::string what = "schedule";
  const auto text = [&](const char* key) { return json_get_or<std::string>(item, key, "", what); };
  const auto number = [&](const char* key, double otherwise) {
    return json_get_or<double>(item, key, otherwise, what);
  };
  Schedule schedule;
  PERCHERON_ASSIGN_OR_RETURN(const std::string name, text("schedule"));
  PERCHERON_ASSIGN_OR_RETURN(const std::string origin, text("origin"));
  PERCHERON_ASSIGN_OR_RETURN(const std::string decay, text("decay_type"));
  PERCHERON_ASSIGN_OR_RETURN(schedule.warmup_steps, json_get<int64_t>(item, "warmup_steps", what));
  PERCHERON_ASSIGN_OR_RETURN(schedule.total_steps, json_get<int64_t>(item, "total_steps", what));
  schedule.past_end = PastEnd::kFormula;
  schedule.warmup = origin == "transformers" ? Warmup::kFromZero : Warmup::kFromOne;
  PERCHERON_ASSIGN_OR_RETURN(schedule.cycles, number("num_cycles", 0.5));
  PERCHERON_ASSIGN_OR_RETURN(const double ratio, number("min_lr_ratio", 0.0));
  PERCHERON_ASSIGN_OR_RETURN(schedule.floor, number("min_lr_rate", ratio));
  PERCHERON_ASSIGN_OR_RETURN(schedule.decay_steps,
                             json_get_or<int64_t>(item, "decay_steps", 0, what));
  schedule.decay = decay == "linear" ? WsdDecay::kLinear : WsdDecay::kCosine;
  if (name.starts_with("cosine")) return schedule;
  if (name == "linear") {
    schedule.shape = ScheduleShape::kLinear;
  } else if (name == "constant") {
    schedule.shape = ScheduleShape::kConstant;
  } else if (name.starts_with("wsd")) {
    schedule.shape = ScheduleShape::kWsd;
  } else {
    return invalid_argument("unknown schedule " + name);
  }
  return schedule;
}

}  // namespace

Result<Report> run_adamw(const std::string& path, DeviceId device_id) {
  PERCHERON_ASSIGN_OR_RETURN(const SafetensorsFile file,
                             SafetensorsFile::open(system_files(), path));
  PERCHERON_ASSIGN_OR_RETURN(const double tolerance, metadata_number(file, "tolerance_abs"));
  PERCHERON_ASSIGN_OR_RETURN(const OptimizerConfig config, adamw_config(file));
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<double> rates, read_numbers(file, "lr"));
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<float> norms, read_floats(file, "total_norm"));
  if (norms.size() != rates.size()) {
    return invalid_argument(
        fmt::format("{}: {} norms of {} steps", path, norms.size(), rates.size()));
  }
  PERCHERON_ASSIGN_OR_RETURN(GoldenDevice device, GoldenDevice::open(device_id));
  Context context = device.context();
  PERCHERON_ASSIGN_OR_RETURN(Parameters parameters, initial_parameters(context, file));
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<Optimizer> optimizer,
                             Optimizer::make(context, config, parameters));
  Report report;
  for (size_t step = 0; step < rates.size(); ++step) {
    // A power of two, so that the division by the weight is exact.
    constexpr float kWeight = 8;
    PERCHERON_RETURN_IF_ERROR(
        load_gradients(context, file, static_cast<int64_t>(step), kWeight, parameters));
    PERCHERON_ASSIGN_OR_RETURN(
        const double norm, optimizer->step(context, kWeight, rates[step] / config.learning_rate));
    report.differences.push_back({fmt::format("total_norm[{}]", step), std::abs(norm - norms[step]),
                                  1e-5 * std::max(1.0f, norms[step])});
    PERCHERON_RETURN_IF_ERROR(compare_values(device, file, fmt::format("param.{}.", step),
                                             parameters, tolerance, report));
  }
  PERCHERON_RETURN_IF_ERROR(compare_moments(context, *optimizer, file, tolerance, report));
  return report;
}

Result<Report> run_muon(const std::string& path, DeviceId device_id) {
  PERCHERON_ASSIGN_OR_RETURN(const SafetensorsFile file,
                             SafetensorsFile::open(system_files(), path));
  PERCHERON_ASSIGN_OR_RETURN(const double tolerance, metadata_number(file, "tolerance_abs_param"));
  PERCHERON_ASSIGN_OR_RETURN(const double exact_tolerance,
                             metadata_number(file, "tolerance_abs_param_exact"));
  PERCHERON_ASSIGN_OR_RETURN(const double steps, metadata_number(file, "steps"));
  OptimizerConfig config;
  config.kind = OptimizerKind::kMuon;
  config.clip_norm = 0;
  PERCHERON_ASSIGN_OR_RETURN(config.muon_learning_rate, metadata_number(file, "lr"));
  PERCHERON_ASSIGN_OR_RETURN(config.muon_momentum, metadata_number(file, "momentum"));
  PERCHERON_ASSIGN_OR_RETURN(config.muon_weight_decay, metadata_number(file, "weight_decay"));
  PERCHERON_ASSIGN_OR_RETURN(const double iterations, metadata_number(file, "ns_steps"));
  config.newton_schulz_steps = static_cast<int>(iterations);
  PERCHERON_ASSIGN_OR_RETURN(const std::string scale, metadata_text(file, "adjust_lr_fn"));
  config.muon_scale = scale == "original" ? MuonScale::kOriginal : MuonScale::kMatchRmsAdamw;
  PERCHERON_ASSIGN_OR_RETURN(GoldenDevice device, GoldenDevice::open(device_id));
  Context context = device.context();
  PERCHERON_ASSIGN_OR_RETURN(Parameters parameters, initial_parameters(context, file));
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<Optimizer> optimizer,
                             Optimizer::make(context, config, parameters));
  Report report;
  for (int64_t step = 0; step < static_cast<int64_t>(steps); ++step) {
    PERCHERON_RETURN_IF_ERROR(load_gradients(context, file, step, 1, parameters));
    PERCHERON_RETURN_IF_ERROR(optimizer->step(context, 1, 1).status());
    PERCHERON_RETURN_IF_ERROR(compare_values(device, file, fmt::format("param.{}.", step),
                                             parameters, tolerance, report));
    PERCHERON_RETURN_IF_ERROR(compare_values(device, file, fmt::format("param_exact.{}.", step),
                                             parameters, exact_tolerance, report));
  }
  return report;
}

Result<Report> run_lr_schedules(const std::string& path, DeviceId) {
  PERCHERON_ASSIGN_OR_RETURN(const std::string text, system_files().read_text(path));
  PERCHERON_ASSIGN_OR_RETURN(const json object, parse_json(text, path));
  PERCHERON_ASSIGN_OR_RETURN(const json* cases, json_array(object, "cases", path));
  PERCHERON_ASSIGN_OR_RETURN(const json* ratios, json_array(object, "warmup_from_ratio", path));
  PERCHERON_ASSIGN_OR_RETURN(const double tolerance,
                             json_get<double>(object, "tolerance_rel", path));
  Report report;
  for (const json& item : *cases) {
    PERCHERON_ASSIGN_OR_RETURN(const Schedule schedule, named_schedule(item));
    PERCHERON_ASSIGN_OR_RETURN(const auto steps,
                               json_get<std::vector<int64_t>>(item, "steps", path));
    PERCHERON_ASSIGN_OR_RETURN(const auto factors,
                               json_get<std::vector<double>>(item, "factor", path));
    double largest = steps.size() == factors.size() ? 0 : std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < std::min(steps.size(), factors.size()); ++i) {
      const double difference = std::abs(schedule_factor(schedule, steps[i]) - factors[i]);
      // Near zero the cosine's own rounding, of a value near 1, is what counts.
      largest = std::max(largest, difference / std::max(std::abs(factors[i]), 1e-4));
    }
    PERCHERON_ASSIGN_OR_RETURN(const auto origin,
                               json_get_or<std::string>(item, "origin", "", path));
    PERCHERON_ASSIGN_OR_RETURN(const auto name,
                               json_get_or<std::string>(item, "schedule", "", path));
    report.differences.push_back(
        {fmt::format("{} {} {} of {}", origin, name, schedule.warmup_steps, schedule.total_steps),
         largest, tolerance});
  }
  for (const json& item : *ratios) {
    PERCHERON_ASSIGN_OR_RETURN(const double ratio, json_get<double>(item, "ratio", path));
    PERCHERON_ASSIGN_OR_RETURN(const int64_t steps, json_get<int64_t>(item, "total_steps", path));
    PERCHERON_ASSIGN_OR_RETURN(const int64_t wanted, json_get<int64_t>(item, "specforge", path));
    expect_equal(report, fmt::format("warm-up of ratio {} of {}", ratio, steps),
                 warmup_steps_from_ratio(ratio, steps), wanted);
  }
  return report;
}

}  // namespace percheron::golden
