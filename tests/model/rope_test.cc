#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numbers>

#include "model/config.h"
#include "tests/model/toy_model.h"

namespace percheron {
namespace {

using nlohmann::json;

constexpr int64_t kHeadDim = 16;

ModelConfig config_with(const json& rope) {
  json config = {{"model_type", "llama"},         {"hidden_size", 64},
                 {"intermediate_size", 64},       {"num_hidden_layers", 1},
                 {"num_attention_heads", 4},      {"vocab_size", 100},
                 {"max_position_embeddings", 512}};
  config.update(rope);
  const std::string directory = fresh_directory("config");
  write_file(directory + "/config.json", config.dump());
  const Result<ModelConfig> result = read_model_config(system_files(), directory);
  PERCHERON_CHECK(result.ok(), result.status().message());
  return *result;
}

// Wavelengths and blends written from the papers, in another shape than the implementation's.
double plain(double theta, int i) { return 1.0 / std::pow(theta, 2.0 * i / kHeadDim); }

double llama3(int i) {
  const double f = plain(500000.0, i), wavelength = 2 * std::numbers::pi / f;
  if (wavelength < 256.0 / 4.0) return f;
  if (wavelength > 256.0 / 1.0) return f / 8.0;
  const double smooth = (256.0 / wavelength - 1.0) / (4.0 - 1.0);
  return (1 - smooth) * f / 8.0 + smooth * f;
}

double yarn(int i) {
  const auto dimension = [](double turns) {
    return kHeadDim * std::log(128.0 / (turns * 2 * std::numbers::pi)) / (2 * std::log(10000.0));
  };
  const double low = std::max(0.0, std::floor(dimension(32.0)));
  const double high = std::min(kHeadDim - 1.0, std::ceil(dimension(1.0)));
  const double ramp = std::min(1.0, std::max(0.0, (i - low) / (high - low)));
  return plain(10000.0, i) * ((1 - ramp) + ramp / 4.0);
}

void expect_tables(const ModelConfig& config, const std::function<double(int)>& frequency,
                   double factor) {
  TestDevice device;
  RopeTable table(device.context().device, config.rope, config.head_dim,
                  config.max_position_embeddings);
  ASSERT_TRUE(table.reserve(device.context(), 3000).ok());
  ASSERT_GE(table.cos().dim(0), 3000);
  ASSERT_EQ(table.cos().dim(1), kHeadDim / 2);
  const std::vector<float> cos = device.floats(table.cos()), sin = device.floats(table.sin());
  for (int position = 0; position < 3000; position += 7) {
    for (int i = 0; i < kHeadDim / 2; ++i) {
      const double angle = position * frequency(i);
      const size_t at = static_cast<size_t>(position * kHeadDim / 2 + i);
      ASSERT_NEAR(cos[at], std::cos(angle) * factor, 2e-7) << position << " " << i;
      ASSERT_NEAR(sin[at], std::sin(angle) * factor, 2e-7) << position << " " << i;
    }
  }
}

// SpecForge#265, SpecForge#219, TorchSpec#101, speculators#574: five spellings, one truth each.
TEST(Rope, ThetaOfTheTopLevelIsUsed) {
  expect_tables(
      config_with({{"rope_theta", 1e6}, {"rope_scaling", nullptr}}),
      [](int i) { return plain(1e6, i); }, 1.0);
}

TEST(Rope, ThetaOfTheRopeParametersIsUsed) {
  expect_tables(
      config_with({{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e6}}}}),
      [](int i) { return plain(1e6, i); }, 1.0);
}

TEST(Rope, LinearDividesEveryFrequency) {
  expect_tables(
      config_with({{"rope_scaling", {{"type", "linear"}, {"factor", 4.0}}}}),
      [](int i) { return plain(10000.0, i) / 4.0; }, 1.0);
}

TEST(Rope, Llama3BlendsByWavelength) {
  expect_tables(config_with({{"rope_theta", 500000.0},
                             {"rope_scaling",
                              {{"rope_type", "llama3"},
                               {"factor", 8.0},
                               {"low_freq_factor", 1.0},
                               {"high_freq_factor", 4.0},
                               {"original_max_position_embeddings", 256}}}}),
                llama3, 1.0);
}

TEST(Rope, YarnBlendsByDimensionAndScalesCosAndSin) {
  expect_tables(
      config_with(
          {{"rope_scaling",
            {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 128}}}}),
      yarn, 0.1 * std::log(4.0) + 1.0);
}

TEST(Rope, YarnsFactorHasThreeSources) {
  RopeConfig rope;
  rope.type = RopeType::kYarn;
  rope.factor = 16.0;
  const auto mscale = [](double m) { return 0.1 * m * std::log(16.0) + 1.0; };
  EXPECT_DOUBLE_EQ(rope_attention_scaling(rope), mscale(1.0));
  rope.mscale = 1.2;
  EXPECT_DOUBLE_EQ(rope_attention_scaling(rope), mscale(1.0));
  rope.mscale_all_dim = 0.4;
  EXPECT_DOUBLE_EQ(rope_attention_scaling(rope), mscale(1.2) / mscale(0.4));
  rope.mscale_all_dim = 0.0;
  EXPECT_DOUBLE_EQ(rope_attention_scaling(rope), mscale(1.0));
  rope.attention_factor = 1.35;
  EXPECT_DOUBLE_EQ(rope_attention_scaling(rope), 1.35);
}

TEST(Rope, YarnWithoutTruncationKeepsFractionalBounds) {
  RopeConfig rope;
  rope.type = RopeType::kYarn;
  rope.factor = 4.0;
  rope.original_max_position_embeddings = 128;
  const std::vector<double> whole = rope_inverse_frequencies(rope, kHeadDim, 512, 0);
  rope.truncate = false;
  const std::vector<double> fractional = rope_inverse_frequencies(rope, kHeadDim, 512, 0);
  EXPECT_NE(whole, fractional);
  EXPECT_EQ(whole.front(), 1.0);
  EXPECT_NEAR(fractional.back(), plain(10000.0, kHeadDim / 2 - 1) / 4.0, 1e-12);
}

TEST(Rope, DynamicGivesEveryLongDocumentItsOwnSection) {
  const ModelConfig config = config_with(
      {{"max_position_embeddings", 10}, {"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}}});
  TestDevice device;
  RopeTable table(device.context().device, config.rope, config.head_dim, 10);
  const std::vector<int64_t> lengths = {13, 7, 19};
  const Result<std::vector<int32_t>> rows = table.reserve_documents(device.context(), lengths);
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ(*rows, (std::vector<int32_t>{10, 0, 23}));
  const std::vector<float> cos = device.floats(table.cos());
  const auto theta = [](int64_t length) {
    if (length <= 10) return 10000.0;
    const double stretch = 2.0 * static_cast<double>(length) / 10.0 - 1.0;
    return 10000.0 * std::pow(stretch, kHeadDim / (kHeadDim - 2.0));
  };
  for (size_t d = 0; d < lengths.size(); ++d) {
    for (int position = 0; position < lengths[d]; ++position) {
      for (int i = 0; i < kHeadDim / 2; ++i) {
        const size_t at = static_cast<size_t>(((*rows)[d] + position) * kHeadDim / 2 + i);
        ASSERT_NEAR(cos[at], std::cos(position * plain(theta(lengths[d]), i)), 2e-7)
            << "document " << d << " position " << position << " pair " << i;
      }
    }
  }
}

}  // namespace
}  // namespace percheron
