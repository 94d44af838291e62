#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/random.h"
#include "tests/actors/simulated_run.h"
#include "tests/actors/tiny_run.h"

namespace percheron {
namespace {

struct Shape {
  int targets = 1, trainers = 1, nodes = 1;
  int64_t per_step = 3, held_out = 0;
  proto::Mailbox::Assignment assignment = proto::Mailbox::STEALING;
  int64_t every_steps = 0;
};

std::shared_ptr<const RunSetup> setup_of(const Shape& shape) {
  proto::Run run = make_tiny_run(
      "simulated",
      {.held_out = shape.held_out, .epochs = 3, .micro_batches_per_step = shape.per_step});
  run.mutable_evaluate()->set_every_steps(shape.held_out > 0 ? 2 : 0);
  run.mutable_checkpoint()->set_every_steps(shape.every_steps);
  run.mutable_mailbox()->set_assignment(shape.assignment);
  place(run, shape.targets, shape.trainers);
  auto setup = resolve_run(run, system_files());
  EXPECT_TRUE(setup.ok()) << setup.status().message();
  return *setup;
}

const std::vector<Shape>& shapes() {
  constexpr auto kStealing = proto::Mailbox::STEALING;
  constexpr auto kFixed = proto::Mailbox::FIXED;
  static const std::vector<Shape> list = {{1, 1, 1, 3, 0, kStealing, 2},
                                          {2, 1, 1, 2, 4, kStealing, 0},
                                          {1, 2, 1, 4, 0, kStealing, 3},
                                          {3, 2, 1, 3, 4, kFixed, 0},
                                          {2, 3, 1, 5, 4, kStealing, 4},
                                          {4, 4, 2, 3, 0, kStealing, 2},
                                          {3, 3, 3, 4, 4, kStealing, 3},
                                          {5, 3, 2, 1, 4, kFixed, 5},
                                          {5, 3, 2, 4, 0, proto::Mailbox::ROUND_ROBIN, 3},
                                          {2, 3, 1, 5, 4, proto::Mailbox::PER_TRAINER_QUEUE, 4},
                                          {4, 2, 2, 8, 0, kFixed, 2},
                                          {3, 3, 3, 12, 0, kStealing, 2}};
  return list;
}

std::string violations_of(const SimulatedOutcome& outcome) {
  std::string text;
  for (const std::string& violation : outcome.violations) text += violation + "; ";
  if (!outcome.end) return text + "it did not end";
  if (!outcome.end->ok()) text += outcome.end->message();
  return text;
}

constexpr uint64_t kSeed = 20251130;

// Every third world knows only deaths, the others all faults; the first of each shape knows none.
// In a fifth of the others workers are added and taken out, too.
SimulatedWorld world_of(uint64_t number) {
  static const std::vector<std::shared_ptr<const RunSetup>> setups = [] {
    std::vector<std::shared_ptr<const RunSetup>> made;
    for (const Shape& shape : shapes()) made.push_back(setup_of(shape));
    return made;
  }();
  const size_t s = number % shapes().size();
  const uint64_t round = number / shapes().size();
  SimulatedWorld world{setups[s], shapes()[s].nodes};
  world.seed = Random::keyed(kSeed, "world", number).next();
  world.bytes_max = static_cast<uint64_t>(shapes()[s].per_step) + round % 7;
  world.prefetch = number % 5;
  if (round == 0) return world;
  world.faults.deaths = 0.004;
  if (round % 3 == 0) return world;
  world.faults.pauses = 0.001;
  world.faults.delays = round % 2 == 0 ? 0.01 : 0;
  world.faults.cuts = 0.001;
  world.faults.connections = 0.001;
  world.faults.crashes = round % 4 == 1 ? 0.0003 : 0;
  world.faults.disk = 0.2;
  world.faults.scales = round % 5 == 2 ? 0.002 : 0;
  return world;
}

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value ? std::strtoull(value, nullptr, 10) : otherwise;
}

// Invariants 1 to 5 and 7 to 9, no dead-lock, and evaluations and checkpoints that are whole,
// whatever dies when, whatever is held or cut off, whoever hears of it late, and wherever it ends.
// PERCHERON_SIMULATED_WORLDS worlds from number PERCHERON_FIRST_WORLD on.
TEST(MembersSimulation, EveryStepKeepsItsMicroBatchesWhateverDiesAndComesBack) {
  const uint64_t first = from_environment("PERCHERON_FIRST_WORLD", 0);
  const uint64_t worlds = from_environment("PERCHERON_SIMULATED_WORLDS", 400);
  SimulatedOutcome all;
  for (uint64_t number = first; number < first + worlds; ++number) {
    SCOPED_TRACE(testing::Message() << "again: PERCHERON_FIRST_WORLD=" << number
                                    << " PERCHERON_SIMULATED_WORLDS=1 actors_members_test "
                                       "--gtest_filter=MembersSimulation.*");
    const SimulatedWorld world = world_of(number);
    const SimulatedOutcome outcome = simulate_run(world);
    ASSERT_EQ(violations_of(outcome), "");
    ASSERT_EQ(outcome.steps, world.setup->steps.steps());
    if (number < shapes().size()) {
      EXPECT_EQ(outcome.membership_changes, 0);
      EXPECT_EQ(counter(outcome.summary, "stale_messages_since_start"), 0);
    }
    all.add_before(outcome);
  }
  const std::pair<const char*, int64_t> counts[] = {
      {"messages", all.messages},
      {"deaths", all.deaths},
      {"words of the dead", all.late_words},
      {"passes beside what follows another", all.overlaps},
      {"pauses", all.pauses},
      {"late messages", all.delays},
      {"cuts", all.cuts},
      {"second connections", all.connections},
      {"workers added", all.added},
      {"workers taken out", all.retired},
      {"crashes", all.crashes},
      {"crashes amid a checkpoint", all.torn},
      {"checkpoints not written", all.unsaved},
      {"changes of members", all.membership_changes},
      {"rewinds", all.rewinds},
      {"micro-batches held ahead", all.ahead},
      {"unreadable features", all.unreadable},
      {"micro-batches computed again", all.recomputed},
      {"micro-batches handed out again", all.requeued},
      {"sums begun early", all.early_sums},
      {"sums begun early in vain", all.taken_back}};
  std::printf("%ld worlds:\n", static_cast<long>(worlds));
  for (const auto& [what, count] : counts) {
    std::printf("  %-30s %ld\n", what, static_cast<long>(count));
    if (worlds < 400) continue;
    EXPECT_GT(count, 15) << what << ": the faults must happen";
  }
}

// Likewise while workers are added and taken out at random, with deaths in between.
TEST(MembersSimulation, EveryStepKeepsItsMicroBatchesWhileWorkersAreAddedAndTakenOut) {
  const uint64_t seed = 20261201;
  RecordProperty("seed", std::to_string(seed));
  SimulatedOutcome all;
  for (size_t s = 0; s < shapes().size(); ++s) {
    const auto setup = setup_of(shapes()[s]);
    for (uint64_t round = 0; round < 40; ++round) {
      SCOPED_TRACE(testing::Message() << "shape " << s << " seed " << seed << " round " << round);
      SimulatedWorld world{setup, shapes()[s].nodes};
      world.seed = Random::keyed(seed, "world", round).next();
      world.bytes_max = static_cast<uint64_t>(shapes()[s].per_step) + round % 7;
      world.prefetch = round % 4;
      world.faults.scales = 0.004;
      world.faults.deaths = round % 2 == 0 ? 0 : 0.002;
      world.faults.pauses = round % 3 == 0 ? 0.001 : 0;
      const SimulatedOutcome outcome = simulate_run(world);
      ASSERT_EQ(violations_of(outcome), "");
      ASSERT_EQ(outcome.steps, setup->steps.steps());
      all.add_before(outcome);
      if (world.faults.deaths > 0) continue;
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
              static_cast<long>(all.membership_changes));
  EXPECT_GT(all.added, 300);
  EXPECT_GT(all.retired, 200);
  EXPECT_GT(all.membership_changes, 200);
}

struct Planted {
  const char* name;
  Canary canary;
  const char* sign;         // in what the checkers say of it
  bool all_faults = false;  // else only deaths
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
    for (uint64_t round = 0; round < 160 && !seen; ++round) {
      SimulatedWorld world{setup, shapes()[s].nodes};
      world.seed = Random::keyed(4711, GetParam().name, round).next();
      world.bytes_max = static_cast<uint64_t>(shapes()[s].per_step) + round % 7;
      world.prefetch = round % 4;
      world.faults.deaths = 0.004;
      world.faults.scales = GetParam().scales;
      if (GetParam().all_faults) {
        world.faults.delays = 0.01;
        world.faults.connections = 0.002;
        world.faults.crashes = 0.0005;
        world.faults.disk = 0.3;
      }
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
        Planted{"RetiredTrainerComputes", Canary::kRetiredTrainerComputes, kOtherParameters, false,
                0.004},
        Planted{"TargetLeavesWithWork", Canary::kTargetLeavesWithWork,
                "a target leaves with a micro-batch", false, 0.004},
        Planted{"EvaluationKeepsTheDead", Canary::kEvaluationKeepsTheDead,
                "the evaluation of step"},
        Planted{"MessagesOvertake", Canary::kMessagesOvertake, "adds micro-batch", true},
        Planted{"SecondConnectionIsNotNoticed", Canary::kSecondConnectionIsNotNoticed, kStandsStill,
                true},
        Planted{"OrderIsNotKept", Canary::kOrderIsNotKept, "adds micro-batch"},
        Planted{"FullDiskIsNotNoticed", Canary::kFullDiskIsNotNoticed,
                "a checkpoint that was written is not there", true},
        Planted{"CheckpointIsWrittenInPlace", Canary::kCheckpointIsWrittenInPlace,
                "the run goes on from step", true},
        Planted{"EarlySumsStand", Canary::kEarlySumsStand, kOtherParameters}),
    [](const testing::TestParamInfo<Planted>& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace percheron
