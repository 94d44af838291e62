// Targets whose layers are kept in 8 bits.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "data/safetensors.h"
#include "kernels/planning_device.h"
#include "model/target.h"
#include "model/weights.h"
#include "tests/model/toy_model.h"

namespace percheron {
namespace {

using nlohmann::json;

constexpr WeightFormat kFormats[] = {WeightFormat::kInt8, WeightFormat::kFp8};

bool is_layer_matrix(const std::string& name) { return name.ends_with("_proj.weight"); }

double largest_code(WeightFormat format) { return format == WeightFormat::kInt8 ? 127 : 448; }

// The nearest value of a code, in double precision, by what the formats are: 3 bits behind the
// leading one, or steps of 2^-9 below 2^-6.
double nearest_code(WeightFormat format, double x) {
  if (format == WeightFormat::kInt8) return std::nearbyint(x);
  if (x == 0) return 0;
  const double step = std::ldexp(1.0, std::max(std::ilogb(x), -6) - 3);
  return std::nearbyint(x / step) * step;
}

float row_scale(const float* row, int64_t columns, WeightFormat format) {
  double largest = 0;
  for (int64_t c = 0; c < columns; ++c) largest = std::max(largest, std::abs(double{row[c]}));
  return largest == 0 ? 1.0f : static_cast<float>(largest / largest_code(format));
}

// The same model with the layers' weights that 8 bits can say, by hand.
ToyModel rounded_by_hand(ToyModel model, WeightFormat format) {
  for (auto& [name, values] : model.tensors) {
    if (!is_layer_matrix(name)) continue;
    const int64_t columns = model.shapes.at(name)[1];
    for (size_t begin = 0; begin < values.size(); begin += static_cast<size_t>(columns)) {
      const float scale = row_scale(values.data() + begin, columns, format);
      for (size_t i = begin; i < begin + static_cast<size_t>(columns); ++i) {
        const double code = nearest_code(format, values[i] / scale);
        values[i] = static_cast<float>(code * double{scale});
      }
    }
  }
  return model;
}

PackedSequences two_documents() {
  PackedSequences rows;
  rows.offsets = {0, 37, 61};
  rows.token_ids = random_tokens(11, 61, 97);
  return rows;
}

std::vector<float> captured_states(TestDevice& device, Target& target,
                                   const PackedSequences& rows) {
  Context& context = device.context();
  const Arena::Scope scope(context.arena);
  const TensorView captured =
      context.arena.take(DType::kF32, {static_cast<int64_t>(rows.token_ids.size()),
                                       static_cast<int64_t>(target.options().capture.size()),
                                       target.config().hidden_size});
  const Status status = target.forward(context, rows, nullptr, captured, {});
  EXPECT_TRUE(status.ok()) << status.message();
  return device.floats(captured);
}

class EightBitFamilies : public testing::TestWithParam<json> {};

// To the bit: the products are the same, only the weights come from codes.
TEST_P(EightBitFamilies, ComputeWithTheWeightsThatTheirCodesStandFor) {
  TestDevice device;
  const ToyModel model = make_toy_model(7, GetParam());
  const std::string directory = model.write(fresh_directory("model"));
  for (const WeightFormat format : kFormats) {
    const std::string by_hand = rounded_by_hand(model, format).write(fresh_directory("by_hand"));
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      SCOPED_TRACE(std::string(weight_format_name(format)) + " " + std::string(dtype_name(dtype)));
      TargetOptions options = f32_options({0, 1, 2, 3, 4});
      options.compute_dtype = dtype;
      const auto expected = load_target(device, by_hand, options);
      options.weights = format;
      for (const WeightExpansion when : {WeightExpansion::kEachPass, WeightExpansion::kOnce}) {
        options.expansion = when;
        const auto target = load_target(device, directory, options);
        EXPECT_EQ(captured_states(device, *target, two_documents()),
                  captured_states(device, *expected, two_documents()));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, EightBitFamilies,
    testing::Values(json{{"model_type", "llama"}, {"attention_bias", true}, {"mlp_bias", true}},
                    json{{"model_type", "mistral"}, {"sliding_window", 6}},
                    json{{"model_type", "qwen2"}, {"tie_word_embeddings", true}},
                    json{{"model_type", "qwen3"}, {"head_dim", 24}}));

// |a - b| / |b|.
double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return 1e9;
  double squares = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    squares += std::pow(double{a[i]} - double{b[i]}, 2);
    size += std::pow(double{b[i]}, 2);
  }
  return std::sqrt(squares / size);
}

PackedSequences golden_rows(const SafetensorsFile& golden) {
  const ConstTensorView ids = golden.tensors().at("input_ids");
  const ConstTensorView documents = golden.tensors().at("document_ids");
  EXPECT_EQ(ids.dtype(), DType::kI64);
  EXPECT_EQ(documents.dtype(), DType::kI64);
  PackedSequences rows;
  for (int64_t i = 0; i < ids.elements(); ++i) {
    const int64_t* document = documents.as<int64_t>() + i;
    if (i == 0 || document[0] != document[-1]) rows.offsets.push_back(static_cast<int32_t>(i));
    rows.token_ids.push_back(static_cast<int32_t>(ids.as<int64_t>()[i]));
  }
  rows.offsets.push_back(static_cast<int32_t>(ids.elements()));
  return rows;
}

// Half a step of a row over its root mean square, the largest of all rows of the layers.
double largest_half_step(const Target& target, WeightFormat format) {
  double largest = 0;
  for (int64_t layer = 0; layer < target.config().num_hidden_layers; ++layer) {
    for (const char* matrix :
         {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
          "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
      const HostWeight weight = target.layer_weight(layer, std::string(matrix) + ".weight").value();
      const auto columns = static_cast<size_t>(weight.shape[1]);
      for (size_t begin = 0; begin < weight.values.size(); begin += columns) {
        const float* row = weight.values.data() + begin;
        double squares = 0;
        for (size_t c = 0; c < columns; ++c) squares += double{row[c]} * double{row[c]};
        if (squares == 0) continue;
        const double half_step = row_scale(row, weight.shape[1], format) / 2.0;
        largest = std::max(largest, half_step / std::sqrt(squares / static_cast<double>(columns)));
      }
    }
  }
  return largest;
}

// Weights move by half a step of their row at most, so an output of a matrix moves, relative to its
// size, by about half a step over the row's root mean square. The bound has all 7 matrices of every
// layer do so, and all in the same direction.
TEST(EightBitTarget, GoldenTargetsStayWithinTheStepsOfTheirWeights) {
  TestDevice device;
  for (const std::string name : {"llama_default_sharded", "mistral_window_old", "qwen3_qknorm"}) {
    SCOPED_TRACE(name);
    const std::string directory = "tests/golden_data/targets/" + name;
    const auto golden = SafetensorsFile::open(system_files(), directory + "/expected.safetensors");
    ASSERT_TRUE(golden.ok()) << golden.status().message();
    const int64_t layers = read_model_config(system_files(), directory)->num_hidden_layers;
    TargetOptions options = f32_options({layers});
    options.weights = WeightFormat::kInt8;
    const auto target = load_target(device, directory, options);
    const std::vector<float> expected =
        to_floats(golden->tensors().at("hidden." + std::to_string(layers)));
    const double difference =
        relative_difference(captured_states(device, *target, golden_rows(*golden)), expected);
    EXPECT_LE(difference,
              7 * static_cast<double>(layers) * largest_half_step(*target, WeightFormat::kInt8));
    EXPECT_GT(difference, 1e-4) << "full weights were used";
  }
}

TEST(EightBitTarget, LayersThatAreLoadedOneAtATimeGiveTheSameStates) {
  TestDevice device;
  const std::string directory = make_toy_model(3).write(fresh_directory("model"));
  TargetOptions options = f32_options({0, 1, 2, 3, 4});
  options.weights = WeightFormat::kInt8;
  const auto loaded = load_target(device, directory, options);
  options.layers = false;
  const auto without = load_target(device, directory, options);
  const int32_t wanted[] = {0, 40, 60};
  const auto a = loaded->all_states(device.context(), two_documents(), wanted);
  const auto b = without->all_states(device.context(), two_documents(), wanted);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(*a, *b);
}

// What drafters borrow and what logits are computed with.
TEST(EightBitTarget, EmbeddingHeadAndNormStayAsStored) {
  TestDevice device;
  for (const bool tied : {false, true}) {
    const std::string directory =
        make_toy_model(3, {{"tie_word_embeddings", tied}}).write(fresh_directory("model"));
    TargetOptions options = f32_options({4});
    const auto full = load_target(device, directory, options);
    options.weights = WeightFormat::kFp8;
    const auto kept = load_target(device, directory, options);
    EXPECT_EQ(device.floats(kept->embedding()), device.floats(full->embedding()));
    EXPECT_EQ(device.floats(kept->head()), device.floats(full->head()));
    EXPECT_EQ(device.floats(kept->final_norm()), device.floats(full->final_norm()));
    const std::string name = "mlp.up_proj.weight";
    EXPECT_EQ(kept->layer_weight(1, name)->values, full->layer_weight(1, name)->values)
        << "a warm start copies the stored weight";
    EXPECT_EQ(kept->weights_hash(), full->weights_hash());
  }
}

TEST(EightBitTarget, TheComparisonIsThatOfTwoTargets) {
  TestDevice device;
  Context& context = device.context();
  const std::string directory = make_toy_model(5).write(fresh_directory("model"));
  const PackedSequences rows = two_documents();
  for (const WeightFormat format : {WeightFormat::kFull, WeightFormat::kInt8, WeightFormat::kFp8}) {
    SCOPED_TRACE(weight_format_name(format));
    TargetOptions options = f32_options({1, 3});
    const auto full = load_target(device, directory, options);
    options.weights = format;
    const auto kept = load_target(device, directory, options);
    const auto comparison = kept->compare_weights(context, rows);
    ASSERT_TRUE(comparison.ok()) << comparison.status().message();

    const std::vector<float> a = captured_states(device, *kept, rows);
    const std::vector<float> b = captured_states(device, *full, rows);
    EXPECT_NEAR(comparison->state_difference, relative_difference(a, b), 1e-12);

    const Arena::Scope scope(context.arena);
    const TensorView last = context.arena.take(DType::kF32, {61, 32});
    std::vector<std::vector<int32_t>> chosen;
    for (Target* target : {kept.get(), full.get()}) {
      const TensorView ids = context.arena.take(DType::kI32, {61});
      ASSERT_TRUE(target->forward(context, rows, nullptr, {}, last).ok());
      target->top1(context, last, ids);
      chosen.push_back(device.integers(ids));
    }
    int64_t same = 0;
    for (size_t i = 0; i < 61; ++i) same += chosen[0][i] == chosen[1][i] ? 1 : 0;
    EXPECT_EQ(comparison->tokens, 61);
    EXPECT_EQ(comparison->same_top1, same);
    if (format == WeightFormat::kFull) {
      EXPECT_EQ(comparison->state_difference, 0);
      EXPECT_EQ(comparison->same_top1, 61);
    } else {
      EXPECT_GT(comparison->state_difference, 0);
    }
  }
}

TEST(EightBitTarget, WithoutAHeadOnlyStatesAreCompared) {
  TestDevice device;
  TargetOptions options = f32_options({2});
  options.weights = WeightFormat::kInt8;
  options.head = false;
  const auto target =
      load_target(device, make_toy_model(5).write(fresh_directory("model")), options);
  const auto comparison = target->compare_weights(device.context(), two_documents());
  ASSERT_TRUE(comparison.ok());
  EXPECT_EQ(comparison->same_top1, -1);
  EXPECT_GT(comparison->state_difference, 0);
  PackedSequences bad = two_documents();
  bad.token_ids[3] = 97;
  EXPECT_EQ(target->compare_weights(device.context(), bad).status().code(),
            StatusCode::kInvalidArgument);
}

// A byte a weight instead of two, but for the scales and the room for one layer.
TEST(EightBitTarget, TheLayersTakeHalfTheMemory) {
  constexpr int64_t kLayers = 12;
  const json config = {{"num_hidden_layers", kLayers}};
  const std::string directory = make_toy_model(5, config).write(fresh_directory("model"));
  constexpr int64_t kQuery = 32, kKey = 16, kHidden = 32, kWidth = 48;
  constexpr int64_t kMatrices =
      kHidden * (kQuery + 2 * kKey) + kQuery * kHidden + 3 * kHidden * kWidth;
  constexpr int64_t kOutputs = kQuery + 2 * kKey + kHidden + 2 * kWidth + kHidden;
  const auto bytes = [&](WeightFormat format) {
    TestDevice device({DeviceKind::kPlanning, 0}, {.threads = 1});
    TargetOptions options;
    options.weights = format;
    load_target(device, directory, options);
    return static_cast<int64_t>(planned_bytes(device.context().device));
  };
  const int64_t full = bytes(WeightFormat::kFull);
  for (const WeightFormat format : kFormats) {
    EXPECT_LE(bytes(format), full - kLayers * kMatrices + kLayers * kOutputs * 4 + 2 * kMatrices);
  }
}

}  // namespace
}  // namespace percheron
