#include "tools/lookup_walk.h"

#include <gtest/gtest.h>

#include "tests/data/shards.h"
#include "tests/model/toy_model.h"
#include "tools/run_report.h"

namespace percheron {
namespace {

TokenDataset dataset_of(const std::string& name, const std::vector<ShardRow>& rows) {
  const std::string path = testing::TempDir() + name;
  EXPECT_TRUE(ShardParts(rows).write(system_files(), path).ok());
  return open_dataset(system_files(), {path}).value();
}

/// A prompt of two tokens, and an answer that repeats itself from its fourth token on for
/// `repeating` tokens and then says what was never said.
ShardRow row_of(int64_t repeating, int64_t length) {
  ShardRow row;
  for (int64_t i = 0; i < length; ++i) {
    row.tokens.push_back(static_cast<uint32_t>(i < repeating ? i % 3 : 10 + i));
    row.mask.push_back(i >= 2 ? 1 : 0);
  }
  return row;
}

TEST(LookupWalk, CoversTheSelectedRowsAsFarAsTheyAreUsed) {
  TestDevice device;
  const TokenDataset cut = dataset_of("cut.safetensors", {row_of(12, 12)});
  const TokenDataset whole = dataset_of("whole.safetensors", {row_of(0, 40), row_of(12, 40)});
  const double expected =
      lookup_walk(device.context(), cut, {.samples = {0}, .lengths = {12}}, 3).value();
  EXPECT_GT(expected, 2.0);
  EXPECT_EQ(lookup_walk(device.context(), whole, {.samples = {1}, .lengths = {12}}, 3).value(),
            expected);
  EXPECT_LT(
      lookup_walk(device.context(), whole, {.samples = {0, 1}, .lengths = {40, 40}}, 3).value(),
      expected);
}

TEST(RunReport, ComputesAsTheRunDid) {
  RunSetup setup;
  setup.placement = {{{DeviceKind::kCpu, 3}}, {{DeviceKind::kCpu, 0}}, 5};
  setup.target_dtype = DType::kBf16;
  setup.drafter_dtype = DType::kF32;
  const EngineOptions options = report_engine_options(setup);
  EXPECT_EQ(options.device, "cpu:3");
  EXPECT_EQ(options.threads, 5);
  const auto engine = Engine::open(options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  EXPECT_EQ((*engine)->dtype(), DType::kBf16);
  EXPECT_EQ((*engine)->drafter_dtype(), DType::kF32);
}

}  // namespace
}  // namespace percheron
