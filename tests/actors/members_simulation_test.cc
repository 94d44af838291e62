#include <gtest/gtest.h>

#include <cstdio>

#include "base/random.h"
#include "tests/actors/simulated_run.h"
#include "tests/actors/tiny_run.h"

namespace percheron {
namespace {

struct Shape {
  int targets = 1, trainers = 1, nodes = 1;
  int64_t per_step = 3, held_out = 0;
  bool fixed = false;
  int64_t every_steps = 0;
};

std::shared_ptr<const RunSetup> setup_of(const Shape& shape) {
  proto::Run run = make_tiny_run(
      "simulated",
      {.held_out = shape.held_out, .epochs = 3, .micro_batches_per_step = shape.per_step});
  run.mutable_evaluate()->set_every_steps(shape.held_out > 0 ? 2 : 0);
  run.mutable_checkpoint()->set_every_steps(shape.every_steps);
  if (shape.fixed) run.mutable_mailbox()->set_assignment(proto::Mailbox::FIXED);
  place(run, shape.targets, shape.trainers);
  auto setup = resolve_run(run, system_files());
  EXPECT_TRUE(setup.ok()) << setup.status().message();
  return *setup;
}

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> list = {{1, 1, 1, 3, 0, false, 2}, {2, 1, 1, 2, 4, false, 0},
                                          {1, 2, 1, 4, 0, false, 3}, {3, 2, 1, 3, 4, true, 0},
                                          {2, 3, 1, 5, 4, false, 4}, {4, 4, 2, 3, 0, false, 2},
                                          {3, 3, 3, 4, 4, false, 3}, {5, 3, 2, 1, 4, true, 5}};
  return list;
}

std::string violations_of(const SimulatedOutcome& outcome) {
  std::string text;
  for (const std::string& violation : outcome.violations) text += violation + "; ";
  if (!outcome.end) return text + "it did not end";
  if (!outcome.end->ok()) text += outcome.end->message();
  return text;
}

// Invariants 1, 2, 3, 5, 7, 8 and 9, no dead-lock, and evaluations and checkpoints that are whole,
// whatever dies when, whatever is held, and whoever hears of it late.
TEST(MembersSimulation, EveryStepKeepsItsMicroBatchesWhateverDiesAndComesBack) {
  const uint64_t seed = 20251130;
  RecordProperty("seed", std::to_string(seed));
  SimulatedOutcome all;
  int64_t rewinds = 0, changes = 0, recomputed = 0, requeued = 0;
  for (size_t s = 0; s < shapes().size(); ++s) {
    const auto setup = setup_of(shapes()[s]);
    for (uint64_t round = 0; round < 40; ++round) {
      SCOPED_TRACE(testing::Message() << "shape " << s << " seed " << seed << " round " << round);
      SimulatedWorld world{setup, shapes()[s].nodes};
      world.seed = Random::keyed(seed, "world", round).next();
      world.bytes_max = static_cast<uint64_t>(shapes()[s].per_step) + round % 7;
      world.deaths = round == 0 ? 0 : 0.004;
      world.pauses = round % 3 == 0 ? 0.001 : 0;
      const SimulatedOutcome outcome = simulate_run(world);
      ASSERT_EQ(violations_of(outcome), "");
      ASSERT_EQ(outcome.steps, setup->steps.steps());
      all.deaths += outcome.deaths;
      all.late_words += outcome.late_words;
      all.pauses += outcome.pauses;
      rewinds += counter(outcome.summary, "rewinds_since_start");
      changes += counter(outcome.summary, "membership_changes_since_start");
      recomputed += counter(outcome.summary, "micro_batches_recomputed_since_start");
      requeued += counter(outcome.summary, "micro_batches_requeued_since_start");
      if (round == 0) {
        EXPECT_EQ(counter(outcome.summary, "membership_changes_since_start"), 0);
        EXPECT_EQ(counter(outcome.summary, "stale_messages_since_start"), 0);
      }
    }
  }
  std::printf(
      "%ld deaths, %ld late words, %ld pauses, %ld changes of members, %ld rewinds, "
      "%ld micro-batches computed again, %ld handed out again\n",
      static_cast<long>(all.deaths), static_cast<long>(all.late_words),
      static_cast<long>(all.pauses), static_cast<long>(changes), static_cast<long>(rewinds),
      static_cast<long>(recomputed), static_cast<long>(requeued));
  EXPECT_GT(all.deaths, 300) << "the faults must happen";
  EXPECT_GT(all.late_words, 20);
  EXPECT_GT(all.pauses, 50);
  EXPECT_GT(rewinds, 10);
  EXPECT_GT(recomputed, 100);
  EXPECT_GT(requeued, 50);
}

// Likewise while workers are added and taken out at random, with deaths in between.
TEST(MembersSimulation, EveryStepKeepsItsMicroBatchesWhileWorkersAreAddedAndTakenOut) {
  const uint64_t seed = 20261201;
  RecordProperty("seed", std::to_string(seed));
  SimulatedOutcome all;
  int64_t changes = 0;
  for (size_t s = 0; s < shapes().size(); ++s) {
    const auto setup = setup_of(shapes()[s]);
    for (uint64_t round = 0; round < 40; ++round) {
      SCOPED_TRACE(testing::Message() << "shape " << s << " seed " << seed << " round " << round);
      SimulatedWorld world{setup, shapes()[s].nodes};
      world.seed = Random::keyed(seed, "world", round).next();
      world.bytes_max = static_cast<uint64_t>(shapes()[s].per_step) + round % 7;
      world.scales = 0.004;
      world.deaths = round % 2 == 0 ? 0 : 0.002;
      world.pauses = round % 3 == 0 ? 0.001 : 0;
      const SimulatedOutcome outcome = simulate_run(world);
      ASSERT_EQ(violations_of(outcome), "");
      ASSERT_EQ(outcome.steps, setup->steps.steps());
      all.added += outcome.added;
      all.retired += outcome.retired;
      changes += counter(outcome.summary, "membership_changes_since_start");
      if (world.deaths > 0) continue;
      for (const char* nothing :
           {"rewinds_since_start", "micro_batches_recomputed_since_start",
            "micro_batches_requeued_since_start", "checkpoint_failures_since_start"}) {
        ASSERT_EQ(counter(outcome.summary, nothing), 0) << nothing;
      }
      ASSERT_EQ(outcome.refused, 0);
    }
  }
  std::printf("%ld workers added, %ld taken out, %ld changes of members\n",
              static_cast<long>(all.added), static_cast<long>(all.retired),
              static_cast<long>(changes));
  EXPECT_GT(all.added, 300);
  EXPECT_GT(all.retired, 200);
  EXPECT_GT(changes, 200);
}

struct Planted {
  const char* name;
  Canary canary;
  const char* sign;  // in what the checkers say of it
  double scales = 0;
};

constexpr const char* kStandsStill = "no word from anyone";
constexpr const char* kOtherParameters = "has other parameters than planned";
constexpr const char* kRefused = "a newcomer was refused";

class CanaryTest : public testing::TestWithParam<Planted> {};

// A checker that finds nothing in a broken system proves nothing of a whole one. The same world
// without the bug is clean, so that what is seen is the bug.
TEST_P(CanaryTest, IsSeen) {
  bool seen = false;
  for (size_t s = 0; s < shapes().size() && !seen; ++s) {
    const auto setup = setup_of(shapes()[s]);
    for (uint64_t round = 0; round < 40 && !seen; ++round) {
      SimulatedWorld world{setup, shapes()[s].nodes};
      world.seed = Random::keyed(4711, GetParam().name, round).next();
      world.bytes_max = static_cast<uint64_t>(shapes()[s].per_step) + round % 7;
      world.deaths = 0.004;
      world.scales = GetParam().scales;
      SCOPED_TRACE(testing::Message() << "shape " << s << " round " << round);
      const SimulatedOutcome whole = simulate_run(world);
      ASSERT_EQ(violations_of(whole), "");
      ASSERT_EQ(whole.refused, 0);
      world.canary = GetParam().canary;
      const SimulatedOutcome outcome = simulate_run(world);
      std::string found = violations_of(outcome);
      if (outcome.refused > 0) found += kRefused;
      seen = found.find(GetParam().sign) != std::string::npos;
      if (seen) std::printf("%s: %s\n", GetParam().name, found.c_str());
    }
  }
  EXPECT_TRUE(seen) << GetParam().sign;
}

INSTANTIATE_TEST_SUITE_P(
    Planted, CanaryTest,
    testing::Values(
        Planted{"TargetLeaseIsForgotten", Canary::kTargetLeaseIsForgotten, kStandsStill},
        Planted{"StepGoesOnAfterALoss", Canary::kStepGoesOnAfterALoss, kStandsStill},
        Planted{"PartialSumsAreKept", Canary::kPartialSumsAreKept, kOtherParameters},
        Planted{"StaleLeaseCounts", Canary::kStaleLeaseCounts, kOtherParameters},
        Planted{"OldTicketIsComputed", Canary::kOldTicketIsComputed, kOtherParameters},
        Planted{"NewcomerIsNotRestored", Canary::kNewcomerIsNotRestored, kRefused},
        Planted{"ChecksumIsNotCompared", Canary::kChecksumIsNotCompared, kOtherParameters},
        Planted{"FeaturesGoBeforeTheCommit", Canary::kFeaturesGoBeforeTheCommit,
                "features that are needed are not in the only store"},
        Planted{"ByteLimitIsIgnored", Canary::kByteLimitIsIgnored, " holds "},
        Planted{"RetiredTrainerComputes", Canary::kRetiredTrainerComputes, kOtherParameters, 0.004},
        Planted{"EvaluationKeepsTheDead", Canary::kEvaluationKeepsTheDead,
                "the evaluation of step"}),
    [](const testing::TestParamInfo<Planted>& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace percheron
