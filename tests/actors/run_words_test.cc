// What a run says to people.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/actors/tiny_run.h"

namespace percheron {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(RunWords, AnEpochThatIsCutOffIsNotCalledDone) {
  proto::Run run = make_tiny_run("cut");
  RecordingObserver whole;
  const Result<RunSummary> summary = train_tiny(run, whole);
  ASSERT_TRUE(summary.ok());
  EXPECT_THAT(whole.events(), Contains(HasSubstr("epoch 2 of 2 is done: ")));
  run = make_tiny_run("cut");
  run.mutable_train()->set_steps(summary->steps - 1);
  RecordingObserver cut;
  ASSERT_TRUE(train_tiny(run, cut).ok());
  EXPECT_THAT(cut.events(), Contains(HasSubstr("epoch 1 of 2 is done: ")));
  EXPECT_THAT(cut.events(), Contains(HasSubstr("epoch 2 of 2 ends after ")));
  EXPECT_THAT(cut.events(), Not(Contains(HasSubstr("epoch 2 of 2 is done"))));
}

TEST(RunWords, TheCacheIsCountedAtTheEnd) {
  proto::Run run = make_tiny_run("cached", {.epochs = 3});
  run.mutable_features()->set_cache_memory_bytes_max(uint64_t{64} << 20);
  RecordingObserver observer;
  const Result<RunSummary> summary = train_tiny(run, observer);
  ASSERT_TRUE(summary.ok());
  EXPECT_EQ(counter(*summary, "samples_from_cache_since_start"), 48);
  EXPECT_TRUE(observer.heard("features: 48 samples were taken from the cache"));
}

}  // namespace
}  // namespace percheron
