#include "data/training_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace percheron {
namespace {

using testing::HasSubstr;

Fingerprint some_fingerprint() {
  Fingerprint fingerprint;
  fingerprint.set("target_hash", "weights");
  fingerprint.set("capture", "2,16,29");
  return fingerprint;
}

proto::TrainingState state_at(int64_t step) {
  proto::TrainingState state;
  state.set_step(step);
  state.set_epoch(1);
  state.set_next_micro_batch(4);
  state.set_micro_batches_per_step(2);
  state.set_seed(42);
  set_fingerprint(some_fingerprint(), state);
  return state;
}

TEST(TrainingState, ReadsBackItsText) {
  const auto read = parse_training_state(training_state_text(state_at(7)), "state");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->step(), 7);
  EXPECT_EQ(fingerprint_of(*read), some_fingerprint());
}

TEST(TrainingState, RefusesWhatNoRunCanHave) {
  EXPECT_THAT(parse_training_state("step: 1", "state").status().message(), HasSubstr("missing"));
  EXPECT_THAT(parse_training_state("stepp: 1", "state").status().message(), HasSubstr("line 1"));
  proto::TrainingState state = state_at(-1);
  EXPECT_THAT(parse_training_state(training_state_text(state), "s").status().message(),
              HasSubstr("step -1"));
  state = state_at(1);
  state.mutable_fingerprint(0)->set_value("a\nb");
  EXPECT_FALSE(parse_training_state(training_state_text(state), "s").ok());
}

}  // namespace
}  // namespace percheron
