#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "model/target.h"
#include "tests/model/toy_model.h"

namespace percheron {
namespace {

MicroBatch batch_of(const std::vector<std::vector<int32_t>>& documents,
                    const std::vector<uint8_t>& mask) {
  MicroBatch batch;
  batch.id = {2, 17};
  batch.offsets.push_back(0);
  for (const auto& document : documents) {
    for (const int32_t id : document) batch.token_ids.push_back(static_cast<uint32_t>(id));
    batch.offsets.push_back(static_cast<int32_t>(batch.token_ids.size()));
    batch.sample_ids.push_back(1000 + batch.sample_ids.size());
  }
  batch.loss_mask = mask;
  return batch;
}

TEST(Capture, FeaturesHaveTheOneLayoutOfStoreAndFile) {
  TestDevice device;
  TargetOptions options = f32_options({1, 3});
  options.capture_last = true;
  const auto target =
      load_target(device, make_toy_model(4).write(fresh_directory("model")), options);
  const MicroBatch batch = batch_of({{5, 6, 7}, {8, 9}}, {0, 1, 1, 0, 1});
  const Result<Features> f32 =
      capture_features(device.context(), *target, batch, DType::kF32, Top1::kNo);
  ASSERT_TRUE(f32.ok()) << f32.status().message();
  EXPECT_EQ(f32->slots, 3);
  EXPECT_TRUE(f32->has_last);
  EXPECT_EQ(f32->hidden_size, 32);
  EXPECT_TRUE(f32->top1.empty());
  EXPECT_EQ(f32->batch.sample_ids, batch.sample_ids);
  ASSERT_EQ(f32->hidden_states.size(), 5u * 3 * 32 * 4);
  const std::vector<float> last = last_states(device, *target, {{5, 6, 7}, {8, 9}});
  const float* states = f32->hidden_view().as<float>();
  for (size_t row = 0; row < 5; ++row) {
    ASSERT_EQ(std::memcmp(states + (row * 3 + 2) * 32, &last[row * 32], 32 * 4), 0);
  }

  const Result<Features> bf16 =
      capture_features(device.context(), *target, batch, DType::kBf16, Top1::kNo);
  ASSERT_TRUE(bf16.ok());
  const uint16_t* rounded = bf16->hidden_view().as<uint16_t>();
  for (size_t i = 0; i < 5 * 3 * 32; ++i) {
    ASSERT_EQ(rounded[i], bf16_from_float(states[i])) << i;
  }
}

TEST(Capture, Top1StandsWhereTheNextTokenOfTheSameDocumentIsSupervised) {
  TestDevice device;
  const auto target =
      load_target(device, make_toy_model(4).write(fresh_directory("model")), f32_options({2}));
  // The second document begins with a supervised token, which the first one must not predict.
  const MicroBatch batch = batch_of({{5, 6, 7, 11}, {8, 9, 3}}, {0, 1, 0, 1, 1, 0, 1});
  const Result<Features> features =
      capture_features(device.context(), *target, batch, DType::kBf16, Top1::kYes);
  ASSERT_TRUE(features.ok()) << features.status().message();

  Context& context = device.context();
  Arena::Scope scope(context.arena);
  const TensorView last = context.arena.take(DType::kF32, {7, 32});
  const TensorView ids = context.arena.take(DType::kI32, {7});
  ASSERT_TRUE(
      target->forward(context, {{5, 6, 7, 11, 8, 9, 3}, {0, 4, 7}, {}}, nullptr, {}, last).ok());
  target->top1(context, last, ids);
  const std::vector<int32_t> top = device.integers(ids);
  EXPECT_EQ(features->top1, (std::vector<int32_t>{top[0], -1, top[2], -1, -1, top[5], -1}));
}

TEST(Capture, Top1FollowsFromTheLastSlotWithoutTheLayers) {
  TestDevice device;
  const std::string directory = make_toy_model(4).write(fresh_directory("model"));
  TargetOptions options = f32_options({2});
  options.capture_last = true;
  const auto target = load_target(device, directory, options);
  const MicroBatch batch = batch_of({{5, 6, 7}, {8, 9}, {3, 4}}, {0, 1, 1, 0, 1, 0, 1});
  const Result<Features> expected =
      capture_features(device.context(), *target, batch, DType::kF32, Top1::kYes);
  ASSERT_TRUE(expected.ok()) << expected.status().message();
  options.layers = false;
  const auto head_only = load_target(device, directory, options);
  Features features = *expected;
  features.top1.assign(features.batch.token_ids.size(), -1);
  const int32_t documents[] = {0, 2};
  const Status status = choose_top1(device.context(), *head_only, documents, features);
  ASSERT_TRUE(status.ok()) << status.message();
  for (size_t row = 0; row < features.top1.size(); ++row) {
    const bool chosen = row < 3 || row >= 5;
    EXPECT_EQ(features.top1[row], chosen ? expected->top1[row] : -1) << row;
  }
}

TEST(Capture, AStateThatIsNotFiniteNamesSampleAndLayer) {
  ToyModel model = make_toy_model(4);
  // Finite weights whose products overflow in the third layer: the first token is named.
  for (float& value : model.tensors["model.layers.2.mlp.up_proj.weight"]) value = 3e38f;
  TestDevice device;
  const auto target =
      load_target(device, model.write(fresh_directory("model")), f32_options({2, 4}));
  const MicroBatch batch = batch_of({{5, 6, 7}, {8, 9}}, {0, 1, 1, 0, 1});
  const Result<Features> features =
      capture_features(device.context(), *target, batch, DType::kBf16, Top1::kNo);
  ASSERT_FALSE(features.ok());
  EXPECT_EQ(features.status().code(), StatusCode::kDataLoss);
  for (const char* part : {"sample 1000", "micro-batch 17 of epoch 2", "layer 4", "token 0"}) {
    EXPECT_NE(features.status().message().find(part), std::string::npos)
        << features.status().message();
  }
}

TEST(Capture, ALastStateThatIsNotFiniteGivesNoTop1) {
  ToyModel model = make_toy_model(4);
  for (float& value : model.tensors["model.layers.3.mlp.up_proj.weight"]) value = 3e38f;
  TestDevice device;
  const auto target = load_target(device, model.write(fresh_directory("model")), f32_options({2}));
  const MicroBatch batch = batch_of({{5, 6, 7}, {8, 9}}, {0, 0, 0, 0, 1});
  const Result<Features> features =
      capture_features(device.context(), *target, batch, DType::kBf16, Top1::kYes);
  EXPECT_EQ(features.status().code(), StatusCode::kDataLoss);
  EXPECT_NE(features.status().message().find("sample 1001"), std::string::npos)
      << features.status().message();
}

}  // namespace
}  // namespace percheron
