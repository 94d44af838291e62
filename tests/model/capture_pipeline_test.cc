#include "model/capture_pipeline.h"

#include <gtest/gtest.h>

#include <deque>
#include <optional>

#include "kernels/ops.h"
#include "model/parameter_list.h"
#include "tests/model/toy_model.h"

namespace percheron {
namespace {

/// Documents of these lengths, of which every third token is supervised.
MicroBatch batch_of(int64_t index, std::initializer_list<int64_t> lengths) {
  MicroBatch batch;
  batch.id = {0, index};
  batch.offsets.push_back(0);
  for (const int64_t length : lengths) {
    for (const int32_t id :
         random_tokens(static_cast<uint64_t>(index * 100 + length), length, 97)) {
      batch.token_ids.push_back(static_cast<uint32_t>(id));
      batch.loss_mask.push_back(batch.token_ids.size() % 3 == 0 ? 1 : 0);
    }
    batch.offsets.push_back(static_cast<int32_t>(batch.token_ids.size()));
    batch.sample_ids.push_back(static_cast<uint64_t>(index * 10) + batch.sample_ids.size());
  }
  return batch;
}

struct Expected {
  std::vector<std::byte> hidden_states;
  std::vector<int32_t> top1;
};

/// The states and ids as one pass gives them that is waited for at every turn.
Expected straight(Context& context, Target& target, const MicroBatch& batch, DType dtype) {
  PackedSequences rows;
  rows.token_ids.assign(batch.token_ids.begin(), batch.token_ids.end());
  rows.offsets = batch.offsets;
  const int64_t tokens = batch.tokens(), hidden = target.config().hidden_size;
  const auto slots = static_cast<int64_t>(target.options().capture.size()) +
                     (target.options().capture_last ? 1 : 0);
  const Arena::Scope scope(context.arena);
  const TensorView captured = context.arena.take(dtype, {tokens, slots, hidden});
  const TensorView last = context.arena.take(DType::kF32, {tokens, hidden});
  const TensorView ids = context.arena.take(DType::kI32, {tokens});
  EXPECT_TRUE(target.forward(context, rows, nullptr, captured, last).ok());
  target.top1(context, last, ids);
  Expected expected;
  expected.hidden_states.resize(captured.bytes());
  context.device.copy_bytes(context.stream, expected.hidden_states.data(), captured.data(),
                            captured.bytes());
  expected.top1 = to_host<int32_t>(context, ids).value();
  for (size_t d = 0; d + 1 < batch.offsets.size(); ++d) {
    for (int32_t row = batch.offsets[d]; row < batch.offsets[d + 1]; ++row) {
      const auto at = static_cast<size_t>(row);
      const bool wanted = row + 1 < batch.offsets[d + 1] && batch.loss_mask[at + 1] != 0;
      if (!wanted) expected.top1[at] = -1;
    }
  }
  return expected;
}

struct Case {
  const char* name;
  DeviceKind device;
  DType dtype;
  bool last;  // is captured
};

class CapturePipelineDevices : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!open_device({GetParam().device, 0}, {}).ok()) GTEST_SKIP() << "no such device here";
    device_ = std::make_unique<TestDevice>(DeviceId{GetParam().device, 0}, DeviceOptions{1});
    TargetOptions options = f32_options({3, 0, 2, 3});
    options.capture_last = GetParam().last;
    target_ = load_target(*device_, make_toy_model(4).write(fresh_directory("model")), options);
  }
  Context& context() { return device_->context(); }
  const DeviceCounters& counters() { return context().device.counters(); }
  std::unique_ptr<CapturePipeline> pipeline(int64_t tokens_max) {
    return std::make_unique<CapturePipeline>(*target_, GetParam().dtype, Top1::kYes, tokens_max);
  }
  void expect_right(const Result<Features>& features, const MicroBatch& batch) {
    ASSERT_TRUE(features.ok()) << features.status().message();
    const Expected expected = straight(context(), *target_, batch, GetParam().dtype);
    EXPECT_EQ(features->batch.sample_ids, batch.sample_ids);
    EXPECT_EQ(features->top1, expected.top1) << batch.id.index;
    EXPECT_TRUE(features->hidden_states == expected.hidden_states) << batch.id.index;
  }

  std::unique_ptr<TestDevice> device_;
  std::unique_ptr<Target> target_;
};

TEST_P(CapturePipelineDevices, TwoUnderWayHaveTheBitsOfOneAtATime) {
  const auto captures = pipeline(40);
  std::deque<std::pair<CapturePipeline::Pending, MicroBatch>> under_way;
  const auto finish = [&] {
    expect_right(under_way.front().first.finish(), under_way.front().second);
    under_way.pop_front();
  };
  int64_t index = 0;
  for (const auto& lengths :
       {std::initializer_list<int64_t>{17, 5}, {40}, {1, 2, 3}, {9}, {13, 20}}) {
    if (under_way.size() == CapturePipeline::kPassesMax) finish();
    MicroBatch batch = batch_of(index++, lengths);
    auto begun = captures->begin(context(), batch);
    ASSERT_TRUE(begun.ok()) << begun.status().message();
    under_way.emplace_back(std::move(*begun), std::move(batch));
  }
  while (!under_way.empty()) finish();
  EXPECT_EQ(captures->growths(), 0);
}

// On a GPU an allocation of either kind waits for the device, and each wait for it is a pause.
TEST_P(CapturePipelineDevices, TheSteadyStateAllocatesNothingAndBeginsWithoutAWait) {
  const auto captures = pipeline(64);
  const MicroBatch batch = batch_of(3, {40, 24});
  for (int i = 0; i < 3; ++i) {  // The arena and the rotary table find their sizes.
    auto first = captures->begin(context(), batch), second = captures->begin(context(), batch);
    ASSERT_TRUE(first->finish().ok() && second->finish().ok());
  }
  const uint64_t allocations = counters().allocations, pinned = counters().host_allocations;
  std::optional<CapturePipeline::Pending> before;
  for (int i = 0; i < 5; ++i) {
    const uint64_t waits = counters().waits;
    auto pending = captures->begin(context(), batch);
    ASSERT_TRUE(pending.ok());
    EXPECT_EQ(counters().waits, waits) << "the pass before was waited for to put this one in";
    if (before) {
      (void)before->wait_pass();
      EXPECT_TRUE(before->finish().ok());
      EXPECT_LE(counters().waits, waits + 2);
    }
    before.reset();
    before.emplace(std::move(*pending));
  }
  EXPECT_TRUE(before->finish().ok());
  EXPECT_EQ(counters().allocations, allocations);
  EXPECT_EQ(counters().host_allocations, pinned);
}

TEST_P(CapturePipelineDevices, ALargerMicroBatchThanPlannedMakesItsBuffersGrow) {
  const auto captures = pipeline(8);
  for (int64_t index = 0; index < 3; ++index) {
    const MicroBatch batch = batch_of(index, {8 + 5 * (index % 2)});
    auto pending = captures->begin(context(), batch);
    ASSERT_TRUE(pending.ok());
    expect_right(pending->finish(), batch);
  }
  EXPECT_EQ(captures->growths(), 1);
}

// As at the end of a run.
TEST_P(CapturePipelineDevices, OneThatNobodyFinishesLeavesItsBuffersToTheNext) {
  const auto captures = pipeline(40);
  for (int64_t index = 0; index < 5; ++index) {
    (void)captures->begin(context(), batch_of(index, {40}));
  }
  const MicroBatch batch = batch_of(7, {12, 3});
  auto pending = captures->begin(context(), batch);
  ASSERT_TRUE(pending.ok());
  expect_right(pending->finish(), batch);
  (void)captures->begin(context(), batch);  // and the pipeline goes
}

// On a processor the pass writes the features: no buffer, and no copy beside them.
TEST(CapturePipeline, OnAProcessorThereAreNoBuffersOfStates) {
  TestDevice device(DeviceId{DeviceKind::kCpu, 0}, DeviceOptions{1});
  const auto target = load_target(device, make_toy_model(4).write(fresh_directory("model")),
                                  f32_options({1, 2, 3}));
  const DeviceCounters& counters = device.context().device.counters();
  const MicroBatch batch = batch_of(0, {40});
  (void)straight(device.context(), *target, batch, DType::kF32);  // sizes the arena
  const uint64_t allocations = counters.allocations, pinned = counters.host_allocations;
  CapturePipeline captures(*target, DType::kF32, Top1::kNo, 40);
  auto pending = captures.begin(device.context(), batch);
  ASSERT_TRUE(pending.ok());
  const size_t in_use = device.context().arena.bytes_peak();
  EXPECT_TRUE(pending->finish().ok());
  EXPECT_EQ(device.context().arena.bytes_peak(), in_use);
  EXPECT_EQ(counters.allocations, allocations);
  EXPECT_EQ(counters.host_allocations, pinned);
}

INSTANTIATE_TEST_SUITE_P(
    Devices, CapturePipelineDevices,
    testing::Values(Case{"CpuF32", DeviceKind::kCpu, DType::kF32, false},
                    Case{"CpuBf16Last", DeviceKind::kCpu, DType::kBf16, true},
                    Case{"EmulatedF32", DeviceKind::kEmulated, DType::kF32, false},
                    Case{"EmulatedBf16Last", DeviceKind::kEmulated, DType::kBf16, true}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace percheron
