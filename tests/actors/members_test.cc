// Runs of real actors on tiny models whose workers die and come back, and that are held and go on.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "tests/actors/mortal_workers.h"

namespace percheron {
namespace {

double relative(double a, double b) { return std::abs(a - b) / std::max(1e-12, std::abs(a)); }

/// `trainers` that steal, on `targets`, evaluated at every third step.
proto::Run run_of(const std::string& name, int targets, int trainers) {
  proto::Run run = make_tiny_run(name, {.held_out = 12, .epochs = 3, .micro_batches_per_step = 4});
  run.mutable_evaluate()->set_every_steps(3);
  place(run, targets, trainers);
  return run;
}

/// The steps of a run with one trainer that nothing disturbs.
std::map<int64_t, StepReport> undisturbed_steps(const std::string& name) {
  MortalRun run(run_of(name + "_undisturbed", 1, 1));
  EXPECT_TRUE(run.train().ok());
  return run.steps();
}

/// Invariants 1, 3, 5 and 8 as they are seen from outside: the same tokens in every step, and
/// losses that differ by rounding only.
void expect_the_same_steps(const std::map<int64_t, StepReport>& expected, const MortalRun& run) {
  const std::map<int64_t, StepReport> steps = run.steps();
  ASSERT_EQ(steps.size(), expected.size());
  for (const auto& [number, step] : expected) {
    EXPECT_EQ(steps.at(number).tokens, step.tokens) << "step " << number;
    EXPECT_EQ(steps.at(number).supervised, step.supervised) << "step " << number;
    if (number <= 20) {
      EXPECT_LT(relative(step.loss, steps.at(number).loss), 1e-5) << "step " << number;
    }
  }
}

/// Each step is evaluated once more often than it is repeated, and measures the same.
void expect_the_same_evaluations(const RecordingObserver& expected,
                                 const RecordingObserver& heard) {
  ASSERT_EQ(heard.evaluations().size(), expected.evaluations().size());
  for (size_t i = 0; i < expected.evaluations().size(); ++i) {
    const EvaluationReport& report = expected.evaluations()[i];
    EXPECT_EQ(heard.evaluations()[i].step, report.step);
    // Another order of summation may move a draft over the edge.
    EXPECT_NEAR(heard.evaluations()[i].acceptance_length_walk[0], report.acceptance_length_walk[0],
                0.1);
  }
}

struct DeathCase {
  const char* name;
  Moment moment;
  int count;
};

class MembersDeathTest : public testing::TestWithParam<DeathCase> {};

// A trainer dies at each of its phases while the others go on; later it comes back.
TEST_P(MembersDeathTest, OthersComputeTheStepAgainAndTheDeadOneComesBack) {
  const DeathCase& death = GetParam();
  const std::string name = std::string("members_") + death.name;
  MortalRun expected(run_of(name + "_undisturbed", 1, 1));
  ASSERT_TRUE(expected.train().ok());
  for (const bool late : {false, true}) {
    for (const int number : {0, 1}) {
      SCOPED_TRACE(testing::Message()
                   << death.name << " of trainer " << number << (late ? ", heard of late" : ""));
      MortalRun run(run_of(name, 3, 3));
      run.plan({WorkerKind::kTrainer, number, death.moment, death.count, 5, late});
      const Result<RunSummary> summary = run.train();
      if (death.moment == Moment::kSnapshot && number != 0) continue;  // The first one is asked.
      ASSERT_TRUE(summary.ok()) << summary.status().message();
      ASSERT_TRUE(run.all_struck()) << "the death must happen";
      EXPECT_EQ(summary->steps, summary->steps_total);
      EXPECT_EQ(summary->epochs, 3);
      expect_the_same_steps(expected.steps(), run);
      expect_the_same_evaluations(expected.heard(), run.heard());
      EXPECT_EQ(counter(*summary, "membership_changes_since_start"), 2);
      EXPECT_EQ(counter(*summary, "rewinds_since_start"), 0);
      EXPECT_TRUE(run.heard().heard("compute from step"));
      EXPECT_EQ(run.workers().back().trainers, (std::vector<int>{0, 1, 2}));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Phases, MembersDeathTest,
                         testing::Values(DeathCase{"add", Moment::kAdd, 2},
                                         DeathCase{"collect", Moment::kCollect, 3},
                                         DeathCase{"apply", Moment::kApply, 2},
                                         DeathCase{"evaluate", Moment::kEvaluate, 2},
                                         DeathCase{"snapshot", Moment::kSnapshot, 2}),
                         [](const testing::TestParamInfo<DeathCase>& info) {
                           return std::string(info.param.name);
                         });

// What was computed when a member died is computed again, and said so.
TEST(Members, RecomputedMicroBatchesAreCounted) {
  MortalRun run(run_of("members_counted", 2, 2));
  run.plan({WorkerKind::kTrainer, 1, Moment::kCollect, 2, std::nullopt, false});
  const Result<RunSummary> summary = run.train();
  ASSERT_TRUE(summary.ok()) << summary.status().message();
  EXPECT_EQ(counter(*summary, "micro_batches_recomputed_since_start"), 4) << "a whole step";
  EXPECT_EQ(counter(*summary, "membership_changes_since_start"), 1);
  EXPECT_EQ(run.workers().back().trainers, std::vector<int>{0});
  EXPECT_EQ(run.workers().back().recomputed, 4);
  expect_the_same_steps(undisturbed_steps("members_counted"), run);
}

// With the only trainer nothing of the open step is left: the run goes back to its checkpoint, and
// ends with the same bits as one that nothing disturbed.
TEST(Members, OnlyTrainerThatComesBackGoesOnFromTheLastCheckpoint) {
  for (const auto& [moment, count] : std::vector<std::pair<Moment, int>>{
           {Moment::kAdd, 1}, {Moment::kAdd, 18}, {Moment::kApply, 4}, {Moment::kEvaluate, 5}}) {
    for (const bool late : {false, true}) {
      SCOPED_TRACE(testing::Message() << "moment " << static_cast<int>(moment) << " " << count
                                      << (late ? " late" : ""));
      const proto::Run reference = run_of("members_alone_reference", 2, 1);
      MortalRun expected(reference);
      ASSERT_TRUE(expected.train().ok());
      const proto::Run only = run_of("members_alone", 2, 1);
      MortalRun run(only);
      run.plan({WorkerKind::kTrainer, 0, moment, count, 0, late});
      const Result<RunSummary> summary = run.train();
      ASSERT_TRUE(summary.ok()) << summary.status().message();
      ASSERT_TRUE(run.all_struck());
      EXPECT_EQ(counter(*summary, "rewinds_since_start"), 1);
      EXPECT_EQ(summary->steps, summary->steps_total);
      EXPECT_EQ(latest_masters(only), latest_masters(reference));
      expect_the_same_steps(expected.steps(), run);
    }
  }
}

TEST(Members, WithoutAnyTrainerTheRunWaitsAndThenEndsNamingItsCheckpoint) {
  MortalRun run(run_of("members_nobody", 1, 1));
  run.worker_wait_seconds = 0.2;
  run.plan({WorkerKind::kTrainer, 0, Moment::kAdd, 10, std::nullopt, false});
  const Result<RunSummary> summary = run.train();
  ASSERT_FALSE(summary.ok());
  EXPECT_EQ(summary.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(summary.status().message().find("no trainer came back within"), std::string::npos)
      << summary.status().message();
  EXPECT_NE(summary.status().message().find("step-0000000"), std::string::npos)
      << summary.status().message();
  const auto& events = run.heard().events();
  EXPECT_EQ(
      std::count_if(events.begin(), events.end(),
                    [](const std::string& text) { return text.starts_with("no trainer is left"); }),
      1);
}

// A target's lease goes to another one; what the dead one stores later is of no account.
TEST(Members, DeathsOfTargetsChangeNothing) {
  const proto::Run reference = run_of("members_targets_reference", 1, 1);
  MortalRun expected(reference);
  ASSERT_TRUE(expected.train().ok());
  for (const bool late : {false, true}) {
    for (const int count : {1, 4, 9}) {
      SCOPED_TRACE(testing::Message() << "call " << count << (late ? " late" : ""));
      const proto::Run given = run_of("members_targets", 2, 1);
      MortalRun run(given);
      run.plan({WorkerKind::kTarget, 0, Moment::kMake, count, 3, late});
      run.plan({WorkerKind::kTarget, 1, Moment::kMake, count + 6, 5, late});
      std::shared_ptr<RunActivity> activity;
      run.prepare = [&activity](RunParts& parts) { activity = parts.activity; };
      const Result<RunSummary> summary = run.train();
      ASSERT_TRUE(summary.ok()) << summary.status().message();
      EXPECT_TRUE(run.all_struck());
      // Each had one or two.
      const int64_t requeued = counter(*summary, "micro_batches_requeued_since_start");
      EXPECT_GE(requeued, 2);
      EXPECT_LE(requeued, 4);
      EXPECT_EQ(latest_masters(given), latest_masters(reference));
      EXPECT_EQ(run.workers().back().targets, (std::set<int>{0, 1}));
      const RunActivitySnapshot seen = activity->snapshot();
      EXPECT_EQ(seen.lease_expirations, (std::array<int64_t, 2>{requeued, 0}));
      EXPECT_EQ(seen.restarts, (std::array<int64_t, 2>{2, 0}));
      for (const auto& [bucket, batches] : seen.in_flight) EXPECT_EQ(batches, 0) << bucket;
    }
  }
}

TEST(Members, WithoutAnyTargetTheRunWaitsAndThenEnds) {
  MortalRun run(run_of("members_no_target", 1, 1));
  run.worker_wait_seconds = 0.2;
  run.plan({WorkerKind::kTarget, 0, Moment::kMake, 8, std::nullopt, false});
  const Result<RunSummary> summary = run.train();
  ASSERT_FALSE(summary.ok());
  EXPECT_NE(summary.status().message().find("no target came back within"), std::string::npos)
      << summary.status().message();
}

/// Every word that `states` say, in order.
std::string words(const std::vector<StateReport>& states) {
  std::string text;
  for (const StateReport& report : states) {
    if (!text.empty()) text += " ";
    text += run_state_name(report.state);
    if (report.state == RunState::kPaused) text += std::to_string(report.step);
  }
  return text;
}

// Invariant 5, and decision: held and gone on with is bit for bit as never held.
TEST(Members, PausedAndResumedRunIsBitIdentical) {
  for (const int trainers : {1, 2}) {
    SCOPED_TRACE(testing::Message() << trainers << " trainers");
    const auto make = [&](const std::string& name) {
      proto::Run run = run_of(name, 2, trainers);
      run.mutable_mailbox()->set_assignment(proto::Mailbox::FIXED);
      return run;
    };
    const proto::Run reference = make("members_unpaused");
    MortalRun expected(reference);
    ASSERT_TRUE(expected.train().ok());
    const proto::Run given = make("members_paused");
    MortalRun run(given);
    run.on_step = [&](const StepReport& report) {
      if (report.step == 3 || report.step == 6) run.control().order(RunOrder::kPause);
    };
    int64_t saved = 0;
    run.on_state = [&](const StateReport& report) {
      if (report.state != RunState::kPaused) return;
      if (std::exchange(saved, report.step) != report.step) {
        run.control().order(RunOrder::kPause);  // again, which only answers again
        run.control().order(RunOrder::kSnapshot);
      }
    };
    run.on_checkpoint = [&](const CheckpointReport& report) {
      if (report.step == saved) run.control().order(RunOrder::kResume);
    };
    const Result<RunSummary> summary = run.train();
    ASSERT_TRUE(summary.ok()) << summary.status().message();
    EXPECT_NE(words(run.states()).find("pausing paused"), std::string::npos) << words(run.states());
    EXPECT_EQ(latest_masters(given), latest_masters(reference));
    ASSERT_EQ(run.steps().size(), expected.steps().size());
    for (const auto& [number, step] : expected.steps()) {
      EXPECT_EQ(run.steps().at(number).loss, step.loss) << "step " << number;
    }
  }
}

TEST(Members, HeldRunThatIsStoppedSavesAndEnds) {
  const proto::Run given = run_of("members_stopped", 1, 1);
  MortalRun run(given);
  run.control().order(RunOrder::kPause);  // before there is a run
  run.on_state = [&](const StateReport& report) {
    if (report.state == RunState::kPaused) run.control().order(RunOrder::kStop);
  };
  const Result<RunSummary> summary = run.train();
  ASSERT_TRUE(summary.ok()) << summary.status().message();
  EXPECT_TRUE(summary->stopped_early);
  EXPECT_EQ(summary->steps, 0);
  EXPECT_TRUE(words(run.states()).ends_with("stopping ended")) << words(run.states());
}

TEST(Members, LossesWhileTheRunIsHeldLoseNothing) {
  MortalRun run(run_of("members_held_losses", 2, 2));
  bool lost = false;
  run.on_step = [&](const StepReport& report) {
    if (report.step == 3) run.control().order(RunOrder::kPause);
  };
  run.on_state = [&](const StateReport& report) {
    if (report.state != RunState::kPaused || std::exchange(lost, true)) return;
    run.control().worker_lost(WorkerKind::kTrainer, 0);
    run.control().worker_lost(WorkerKind::kTrainer, 0);
    run.control().worker_lost(WorkerKind::kTarget, 1);
    run.control().worker_ready(WorkerKind::kTarget, 1);
    run.control().worker_ready(WorkerKind::kTrainer, 0);
    run.control().worker_ready(WorkerKind::kTrainer, 7);
    run.control().order(RunOrder::kResume);
  };
  const Result<RunSummary> summary = run.train();
  ASSERT_TRUE(summary.ok()) << summary.status().message();
  EXPECT_TRUE(lost);
  EXPECT_EQ(counter(*summary, "membership_changes_since_start"), 2);
  EXPECT_TRUE(run.heard().heard("trainer 7 has no place in this run"));
  expect_the_same_steps(undisturbed_steps("members_held_losses"), run);
}

}  // namespace
}  // namespace percheron
