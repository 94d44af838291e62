#include "model/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/random.h"
#include "tests/model/toy_model.h"

namespace percheron {
namespace {

using Parameters = std::vector<std::unique_ptr<Parameter>>;

void upload(TestDevice& device, const Tensor& tensor, const std::vector<float>& values) {
  Context& context = device.context();
  context.device.copy_bytes(context.stream, tensor.view().data(), values.data(),
                            values.size() * sizeof(float));
  ASSERT_TRUE(context.stream.wait_idle().ok());
}

std::vector<float> random_values(Random& random, int64_t count) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>(random.normal()));
  return values;
}

std::unique_ptr<Parameter> make_parameter(TestDevice& device, const std::string& name,
                                          std::initializer_list<int64_t> shape, uint64_t seed) {
  Context& context = device.context();
  auto parameter = std::make_unique<Parameter>();
  parameter->name = name;
  parameter->value = context.device.make_tensor(DType::kF32, shape).value();
  parameter->gradient = context.device.make_tensor(DType::kF32, shape).value();
  Random random = Random::keyed(seed, name);
  upload(device, parameter->value, random_values(random, parameter->value.view().elements()));
  return parameter;
}

Parameters make_parameters(TestDevice& device, uint64_t seed = 1) {
  Parameters parameters;
  parameters.push_back(make_parameter(device, "fc.weight", {4, 6}, seed));
  parameters.push_back(make_parameter(device, "norm.weight", {5}, seed));
  parameters.push_back(make_parameter(device, "lm_head.weight", {7, 4}, seed));
  return parameters;
}

// Gradients of `step`, the same for every run, times `weight`.
void set_gradients(TestDevice& device, Parameters& parameters, int64_t step, float weight = 1) {
  for (auto& parameter : parameters) {
    Random random = Random::keyed(99, parameter->name, static_cast<uint64_t>(step));
    std::vector<float> values = random_values(random, parameter->gradient.view().elements());
    for (float& value : values) value *= weight;
    upload(device, parameter->gradient, values);
  }
}

std::vector<float> all_values(TestDevice& device, const Parameters& parameters) {
  std::vector<float> all;
  for (const auto& parameter : parameters) {
    const std::vector<float> values = device.floats(parameter->value);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

OptimizerConfig config_of(OptimizerKind kind) {
  OptimizerConfig config;
  config.kind = kind;
  config.learning_rate = 1e-2;
  config.weight_decay = 0.1;
  config.muon_weight_decay = 0.1;
  return config;
}

class OptimizerKinds : public testing::TestWithParam<OptimizerKind> {};

// SpecForge bcb2ec2a, fb85f10f: moments and step count come back, so 20 steps and 10 + 10 are
// equal.
TEST_P(OptimizerKinds, ContinueBitForBitFromTheirExportedState) {
  TestDevice device;
  Context& context = device.context();
  Parameters whole = make_parameters(device);
  auto uninterrupted = Optimizer::make(context, config_of(GetParam()), whole).value();
  for (int64_t step = 0; step < 20; ++step) {
    set_gradients(device, whole, step);
    ASSERT_TRUE(uninterrupted->step(context, 3.0, 1.0).ok());
  }
  Parameters cut = make_parameters(device);
  auto first = Optimizer::make(context, config_of(GetParam()), cut).value();
  for (int64_t step = 0; step < 10; ++step) {
    set_gradients(device, cut, step);
    ASSERT_TRUE(first->step(context, 3.0, 1.0).ok());
  }
  const OptimizerState state = first->export_state(context).value();
  EXPECT_EQ(state.steps, 10);
  auto second = Optimizer::make(context, config_of(GetParam()), cut).value();
  ASSERT_TRUE(second->import_state(context, state).ok());
  for (int64_t step = 10; step < 20; ++step) {
    set_gradients(device, cut, step);
    ASSERT_TRUE(second->step(context, 3.0, 1.0).ok());
  }
  EXPECT_EQ(all_values(device, cut), all_values(device, whole));
  EXPECT_EQ(second->steps(), 20);
}

TEST_P(OptimizerKinds, LeaveEverythingAsItWasWhenAGradientIsNotFinite) {
  TestDevice device;
  Context& context = device.context();
  Parameters parameters = make_parameters(device);
  auto optimizer = Optimizer::make(context, config_of(GetParam()), parameters).value();
  set_gradients(device, parameters, 0);
  ASSERT_TRUE(optimizer->step(context, 1.0, 1.0).ok());
  const std::vector<float> before = all_values(device, parameters);
  const OptimizerState state = optimizer->export_state(context).value();
  set_gradients(device, parameters, 1);
  upload(device, parameters[1]->gradient, {1, 2, std::numeric_limits<float>::quiet_NaN(), 4, 5});
  const Result<double> norm = optimizer->step(context, 1.0, 1.0);
  ASSERT_FALSE(norm.ok());
  EXPECT_EQ(norm.status().code(), StatusCode::kDataLoss);
  EXPECT_NE(norm.status().message().find("norm.weight"), std::string::npos);
  EXPECT_NE(norm.status().message().find("element 2"), std::string::npos);
  EXPECT_EQ(all_values(device, parameters), before);
  EXPECT_EQ(optimizer->steps(), 1);
  const OptimizerState after = optimizer->export_state(context).value();
  for (const auto& [name, moment] : after.moments) {
    EXPECT_EQ(moment.values, state.moments.at(name).values) << name;
  }
}

TEST_P(OptimizerKinds, AverageByWeightWhateverTheScaleOfTheSums) {
  TestDevice device;
  Context& context = device.context();
  Parameters one = make_parameters(device), many = make_parameters(device);
  auto optimizer = Optimizer::make(context, config_of(GetParam()), one).value();
  auto other = Optimizer::make(context, config_of(GetParam()), many).value();
  for (int64_t step = 0; step < 3; ++step) {
    set_gradients(device, one, step);
    set_gradients(device, many, step, 64);
    const double norm = optimizer->step(context, 1, 0.5).value();
    EXPECT_NEAR(other->step(context, 64, 0.5).value(), norm, 1e-12 * norm);
  }
  const std::vector<float> a = all_values(device, one), b = all_values(device, many);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Both, OptimizerKinds,
                         testing::Values(OptimizerKind::kAdamw, OptimizerKind::kMuon));

TEST(Optimizer, UsesMuonForMatricesExceptTheHead) {
  TestDevice device;
  Context& context = device.context();
  Parameters parameters = make_parameters(device);
  parameters.push_back(make_parameter(device, "embed_tokens.weight", {3, 4}, 1));
  auto optimizer = Optimizer::make(context, config_of(OptimizerKind::kMuon), parameters).value();
  const OptimizerState state = optimizer->export_state(context).value();
  EXPECT_TRUE(state.moments.contains("momentum.fc.weight"));
  EXPECT_TRUE(state.moments.contains("exp_avg.lm_head.weight"));
  EXPECT_TRUE(state.moments.contains("exp_avg_sq.norm.weight"));
  EXPECT_TRUE(state.moments.contains("exp_avg.embed_tokens.weight"));
  EXPECT_EQ(state.moments.size(), 7u);
}

TEST(Optimizer, LeavesFrozenParametersAlone) {
  TestDevice device;
  Context& context = device.context();
  Parameters parameters = make_parameters(device);
  parameters[2]->trainable = false;
  parameters[2]->gradient = Tensor();
  const std::vector<float> before = device.floats(parameters[2]->value);
  auto optimizer = Optimizer::make(context, config_of(OptimizerKind::kAdamw), parameters).value();
  upload(device, parameters[0]->gradient, std::vector<float>(24, 1));
  upload(device, parameters[1]->gradient, std::vector<float>(5, 1));
  ASSERT_TRUE(optimizer->step(context, 1, 1).ok());
  EXPECT_EQ(device.floats(parameters[2]->value), before);
}

TEST(Optimizer, ClipsAllTensorsByOneNormAndZeroesTheGradients) {
  TestDevice device;
  Context& context = device.context();
  Parameters parameters = make_parameters(device);
  OptimizerConfig config;
  config.clip_norm = 0.5;
  auto optimizer = Optimizer::make(context, config, parameters).value();
  set_gradients(device, parameters, 0);
  double squares = 0;
  for (const auto& parameter : parameters) {
    for (const float g : device.floats(parameter->gradient)) squares += double{g} * g;
  }
  const double norm = std::sqrt(squares) / 2;
  const std::vector<float> g = device.floats(parameters[0]->gradient);
  EXPECT_NEAR(optimizer->step(context, 2, 1).value(), norm, 1e-6 * norm);
  // The first exp_avg is (1 - beta1) times the clipped gradient.
  const OptimizerState state = optimizer->export_state(context).value();
  const double factor = 0.1 * 0.5 / (norm + 1e-6) / 2;
  const std::vector<float>& moment = state.moments.at("exp_avg.fc.weight").values;
  for (size_t i = 0; i < g.size(); ++i) EXPECT_NEAR(moment[i], factor * g[i], 1e-6);
  for (const auto& parameter : parameters) {
    for (const float value : device.floats(parameter->gradient)) EXPECT_EQ(value, 0.0f);
  }
}

// SpecForge#139: a state of another drafter is refused, never dropped.
TEST(Optimizer, RefusesAStateThatDoesNotFit) {
  TestDevice device;
  Context& context = device.context();
  Parameters parameters = make_parameters(device);
  auto optimizer = Optimizer::make(context, config_of(OptimizerKind::kAdamw), parameters).value();
  const OptimizerState good = optimizer->export_state(context).value();

  OptimizerState missing = good;
  missing.moments.erase("exp_avg.fc.weight");
  Status status = optimizer->import_state(context, missing);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("lacks exp_avg.fc.weight"), std::string::npos);

  OptimizerState wide = good;
  wide.moments["exp_avg_sq.lm_head.weight"] = {{9, 4}, std::vector<float>(36)};
  status = optimizer->import_state(context, wide);
  EXPECT_NE(status.message().find("[9, 4]"), std::string::npos);
  EXPECT_NE(status.message().find("[7, 4]"), std::string::npos);

  OptimizerState strange = good;
  strange.moments["exp_avg.other"] = {{1}, {0}};
  status = optimizer->import_state(context, strange);
  EXPECT_NE(status.message().find("exp_avg.other"), std::string::npos);

  auto muon = Optimizer::make(context, config_of(OptimizerKind::kMuon), parameters).value();
  EXPECT_FALSE(muon->import_state(context, good).ok());
}

TEST(Optimizer, RefusesAStepWithoutWeight) {
  TestDevice device;
  Context& context = device.context();
  Parameters parameters = make_parameters(device);
  auto optimizer = Optimizer::make(context, config_of(OptimizerKind::kAdamw), parameters).value();
  set_gradients(device, parameters, 0);
  for (const double weight : {0.0, -1.0, std::nan("")}) {
    EXPECT_EQ(optimizer->step(context, weight, 1).status().code(), StatusCode::kInvalidArgument);
  }
}

TEST(Optimizer, NamesTheSettingThatIsOutOfRange) {
  OptimizerConfig config;
  EXPECT_TRUE(check_optimizer_config(config).ok());
  config.beta2 = 1.0;
  EXPECT_NE(check_optimizer_config(config).message().find("optimizer.beta2 is 1"),
            std::string::npos);
  config.beta2 = 0.95;
  config.learning_rate = std::nan("");
  EXPECT_NE(check_optimizer_config(config).message().find("learning_rate"), std::string::npos);
}

}  // namespace
}  // namespace percheron
