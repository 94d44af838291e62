#include "actors/run_supervisor.h"

#include <gtest/gtest.h>

#include "tests/actors/tiny_run.h"
#include "tests/base/fake_clock.h"

namespace percheron {
namespace {

/// Writes down what the supervisor orders, one word a piece.
class Diary final : public RunOrders {
 public:
  void open_step(const PlannedStep& step) override { add("open", step.step); }
  void reduce(const Trainers&, int64_t step, int64_t) override { add("reduce", step); }
  void commit(int64_t step) override { add("commit", step); }
  void apply(const Trainers&, int64_t step, bool, int64_t round) override {
    add("apply", step);
    apply_round = round;
  }
  void evaluate(const Trainers&, int64_t step, int64_t round) override {
    add("evaluate", step);
    evaluation_round = round;
  }
  void snapshot(int, int64_t step) override { add("snapshot", step); }
  void regroup(const Trainers&, int64_t membership) override {
    if (membership > 0) add("regroup", membership);
  }
  void restore(const Trainers&, int64_t, const std::string&, int64_t round) override {
    restore_round = round;
  }
  void target_lost(int) override {}
  void target_ready(int) override {}
  void worker_added(WorkerKind, int number, int) override { add("added", number); }
  void worker_retired(WorkerKind, int number) override { add("retired", number); }
  void node_lost(int) override {}
  void rewind(int64_t step) override { add("rewind", step); }
  void write_checkpoint(int64_t step, const RunProgress& progress, bool prove) override {
    add(prove ? "prove" : "write", step);
    written_best = progress.best_step;
  }
  void mark_best(int64_t step) override { add("best", step); }
  void finish(const Status& status) override {
    end = status;
    add("finish", 0);
  }

  /// What was ordered since the last call.
  std::string read() { return std::exchange(text_, ""); }
  std::optional<Status> end;
  std::optional<int64_t> written_best;
  int64_t apply_round = 0, evaluation_round = 0, restore_round = 0;

 private:
  void add(const char* word, int64_t step) {
    if (!text_.empty()) text_ += " ";
    text_ += word + std::to_string(step);
  }
  std::string text_;
};

class SupervisorTest : public testing::Test {
 protected:
  /// Steps of one micro-batch; `steps` of them.
  void make(int64_t steps, int trainers, int64_t held_out, int64_t every_steps = 0,
            bool resumed = false, const RunProgress& progress = {}) {
    proto::Run run = make_tiny_run(
        "supervisor", {.held_out = held_out, .epochs = 1, .micro_batches_per_step = 1});
    run.mutable_train()->clear_epochs();
    run.mutable_train()->set_steps(steps);
    run.mutable_checkpoint()->set_every_steps(every_steps);
    place(run, 2, trainers);
    auto setup = resolve_run(run, system_files());
    ASSERT_TRUE(setup.ok()) << setup.status().message();
    SupervisorSettings settings;
    settings.setup = *setup;
    if (resumed) settings.resumed_from = "step-before";
    settings.progress = progress;
    settings.stall_seconds = 60;
    supervisor_.emplace(settings, diary_, observer_, clock_);
    supervisor_->start();
    trainers_ = trainers;
  }

  void run_step(int64_t step, double weight = 1) {
    const MicroBatchId id{0, step};
    supervisor_->trainer_work({0, id, true, 0, 0, 0, 0, 0});
    supervisor_->trainer_work({0, id, false, 10, 1, 0.1, 0, 0});
    supervisor_->step_computed(step, 0);
    for (int trainer = 0; trainer < trainers_; ++trainer) {
      supervisor_->reduced(trainer, step, 0, 0.1);
    }
    for (int trainer = 0; trainer < trainers_; ++trainer) apply(trainer, step, weight, 7);
  }

  void apply(int trainer, int64_t step, double weight, uint32_t checksum) {
    AppliedReport report;
    report.trainer = trainer;
    report.sums.loss = 2 * weight;
    report.sums.weight = weight;
    report.sums.tokens = 10;
    report.applied.skipped = weight == 0;
    report.checksum = checksum;
    report.round = diary_.apply_round;
    supervisor_->applied(step, report, {});
  }

  void write(int64_t step, const Status& status = ok_status()) {
    supervisor_->snapshot_taken(step, 0);
    CheckpointReport report;
    report.step = step;
    report.directory = status.ok() ? "step-" + std::to_string(step) : "";
    report.error = status.message();
    supervisor_->checkpoint_written(report, status);
  }

  FakeClock clock_;
  Diary diary_;
  RecordingObserver observer_;
  std::optional<RunSupervisor> supervisor_;
  int trainers_ = 1;
};

// Automodel#2310.
TEST_F(SupervisorTest, NothingIsTrainedBeforeTheFirstCheckpointIsProved) {
  make(2, 1, 0);
  EXPECT_EQ(diary_.read(), "snapshot0");
  supervisor_->snapshot_taken(0, 0);
  EXPECT_EQ(diary_.read(), "prove0");
  write(0);
  EXPECT_EQ(diary_.read(), "open0") << "who copies may be said to have it twice";
}

TEST_F(SupervisorTest, FirstCheckpointThatFailsEndsTheRun) {
  make(2, 1, 0);
  write(0, resource_exhausted("no space"));
  ASSERT_TRUE(diary_.end);
  EXPECT_EQ(diary_.end->code(), StatusCode::kResourceExhausted);
}

TEST_F(SupervisorTest, CheckpointThatEndsWithItsTrainerIsWrittenByAnother) {
  make(1, 3, 0);
  const auto lose_writer = [&](int trainer, int64_t step) {
    supervisor_->snapshot_taken(step, 0);
    supervisor_->worker_lost(WorkerKind::kTrainer, trainer);
    CheckpointReport report;
    report.step = step;
    report.error = "the trainer that wrote it is gone";
    supervisor_->checkpoint_written(report, unavailable(report.error));
  };
  lose_writer(0, 0);
  EXPECT_EQ(diary_.read(), "snapshot0 prove0 regroup1 snapshot0");
  write(0);
  EXPECT_EQ(diary_.read(), "prove0 open0");
  supervisor_->step_computed(0, 1);
  for (int trainer : {1, 2}) supervisor_->reduced(trainer, 0, 1, 0.1);
  for (int trainer : {1, 2}) apply(trainer, 0, 1, 7);
  EXPECT_EQ(diary_.read(), "reduce0 commit0 apply0 snapshot1");
  lose_writer(1, 1);
  EXPECT_EQ(diary_.read(), "write1 regroup2 snapshot1") << "the last one";
  write(1);
  EXPECT_FALSE(diary_.end) << "the epoch is not over";
  supervisor_->epoch_exhausted(0);
  ASSERT_TRUE(diary_.end);
  EXPECT_TRUE(diary_.end->ok()) << diary_.end->message();
}

TEST_F(SupervisorTest, CopyThatIsLostWhileItWaitsForTheEvaluationIsTakenAgain) {
  make(2, 2, 4);
  supervisor_->held_out_ready();
  EXPECT_EQ(diary_.read(), "evaluate0 snapshot0");
  supervisor_->snapshot_taken(0, 0);
  supervisor_->worker_lost(WorkerKind::kTrainer, 0);
  EXPECT_EQ(diary_.read(), "regroup1 evaluate0 snapshot0");
  WalkCounts counts;
  counts.rounds = counts.tokens = {1};
  supervisor_->evaluated(1, diary_.evaluation_round, counts, 0.1);
  EXPECT_EQ(diary_.read(), "");
  write(0);
  EXPECT_EQ(diary_.read(), "prove0 best0 open0");
}

TEST_F(SupervisorTest, LastCheckpointThatEndsWithTheLastTrainerSendsTheRunBack) {
  make(1, 1, 0);
  write(0);
  run_step(0);
  supervisor_->snapshot_taken(1, 0);
  diary_.read();
  supervisor_->worker_lost(WorkerKind::kTrainer, 0);
  EXPECT_EQ(diary_.read(), "regroup1") << "its copy is being written";
  CheckpointReport report;
  report.step = 1;
  supervisor_->checkpoint_written(report, unavailable("the trainer that wrote it is gone"));
  EXPECT_EQ(supervisor_->state(), RunState::kWaiting);
  supervisor_->worker_ready(WorkerKind::kTrainer, 0);
  EXPECT_EQ(diary_.read(), "rewind0");
  EXPECT_FALSE(diary_.end);
}

TEST_F(SupervisorTest, StepIsReducedCommittedAppliedAndThenTheNextOpens) {
  make(3, 2, 0);
  write(0);
  diary_.read();
  run_step(0);
  EXPECT_EQ(diary_.read(), "reduce0 commit0 apply0 open1");
  EXPECT_EQ(observer_.steps().size(), 1u);
  EXPECT_EQ(observer_.steps()[0].loss, 2);
}

TEST_F(SupervisorTest, EndsOnceAfterTheLastCheckpointAndTheEpochsEnd) {
  make(2, 1, 0);
  write(0);
  run_step(0);
  run_step(1);
  diary_.read();
  write(2);
  EXPECT_FALSE(diary_.end) << "the sampler has not said that the epoch is exhausted";
  supervisor_->epoch_exhausted(0);
  ASSERT_TRUE(diary_.end);
  EXPECT_TRUE(diary_.end->ok());
  EXPECT_EQ(supervisor_->summary().epochs, 1);
  supervisor_->epoch_exhausted(0);
  EXPECT_EQ(diary_.read(), "write2 best2 finish0");
}

TEST_F(SupervisorTest, EvaluationSteersBestAndTheCheckpointKnowsIt) {
  make(1, 2, 4);
  supervisor_->held_out_ready();
  EXPECT_EQ(diary_.read(), "evaluate0 snapshot0");
  supervisor_->snapshot_taken(0, 0);
  EXPECT_EQ(diary_.read(), "") << "waits for what is measured of it";
  WalkCounts counts;
  counts.rounds = {10};
  counts.tokens = {12};
  supervisor_->evaluated(0, diary_.evaluation_round, counts, 1);
  supervisor_->evaluated(1, diary_.evaluation_round, counts, 2);
  EXPECT_EQ(diary_.read(), "prove0");
  EXPECT_EQ(diary_.written_best, 0);
  ASSERT_EQ(observer_.evaluations().size(), 1u);
  EXPECT_DOUBLE_EQ(observer_.evaluations()[0].acceptance_length_walk[0], 1.2);
  EXPECT_TRUE(observer_.evaluations()[0].best);
}

// A full disk later on stops nothing.
TEST_F(SupervisorTest, LaterCheckpointThatFailsIsSaidAndTheRunGoesOn) {
  make(3, 1, 0, 1);
  write(0);
  run_step(0);
  diary_.read();
  write(1, resource_exhausted("no space"));
  EXPECT_TRUE(observer_.heard("no space"));
  EXPECT_FALSE(diary_.end);
  run_step(1);
  write(2);
  EXPECT_EQ(observer_.checkpoints().size(), 3u);
}

TEST_F(SupervisorTest, OneCheckpointIsInFlightAtATime) {
  make(4, 1, 0, 1);
  write(0);
  diary_.read();
  run_step(0);
  EXPECT_EQ(diary_.read(), "reduce0 commit0 apply0 snapshot1 open1");
  run_step(1);
  EXPECT_EQ(diary_.read(), "reduce1 commit1 apply1") << "waits for the writer";
  write(1);
  EXPECT_EQ(diary_.read(), "write1 best1 snapshot2 open2");
}

TEST_F(SupervisorTest, FirstSignalSavesAtTheNextBoundaryAndEnds) {
  make(5, 1, 0);
  write(0);
  run_step(0);
  supervisor_->tick(1);
  EXPECT_FALSE(diary_.end);
  diary_.read();
  run_step(1);
  EXPECT_EQ(diary_.read(), "reduce1 commit1 apply1 snapshot2");
  write(2);
  ASSERT_TRUE(diary_.end);
  EXPECT_TRUE(diary_.end->ok());
  EXPECT_TRUE(supervisor_->summary().stopped_early);
  EXPECT_EQ(supervisor_->summary().steps, 2);
}

TEST_F(SupervisorTest, SecondSignalEndsAtOnce) {
  make(5, 1, 0);
  write(0);
  supervisor_->tick(2);
  ASSERT_TRUE(diary_.end);
  EXPECT_EQ(diary_.end->code(), StatusCode::kCancelled);
}

// TorchSpec#53.
TEST_F(SupervisorTest, StandstillNamesTheActorAndWhatItHolds) {
  make(5, 1, 4);
  supervisor_->target_work(1, {-1, 3}, true, 0, 0);
  clock_.advance(59);
  supervisor_->tick(0);
  EXPECT_FALSE(diary_.end);
  clock_.advance(2);
  supervisor_->tick(0);
  ASSERT_TRUE(diary_.end);
  EXPECT_EQ(diary_.end->code(), StatusCode::kUnavailable);
  EXPECT_NE(diary_.end->message().find("target 1 on cpu:1 has worked on micro-batch (-1, 3)"),
            std::string::npos)
      << diary_.end->message();
}

TEST_F(SupervisorTest, DifferingParametersEndTheRun) {
  make(5, 2, 0);
  write(0);
  supervisor_->step_computed(0, 0);
  supervisor_->reduced(0, 0, 0, 0);
  supervisor_->reduced(1, 0, 0, 0);
  apply(0, 0, 1, 7);
  apply(1, 0, 1, 8);
  ASSERT_TRUE(diary_.end);
  EXPECT_EQ(diary_.end->code(), StatusCode::kInternal);
}

TEST_F(SupervisorTest, UnsupervisedStepIsSkippedAndCounted) {
  make(2, 1, 0);
  write(0);
  run_step(0, 0);
  EXPECT_EQ(counter(supervisor_->summary(), "steps_skipped"), 1);
  EXPECT_EQ(observer_.steps()[0].loss, 0);
}

TEST_F(SupervisorTest, ResumedRunOpensItsStepWithoutSavingItAgain) {
  RunProgress progress;
  progress.step = 3;
  make(5, 1, 0, 1, true, progress);
  EXPECT_EQ(diary_.read(), "open3");
}

TEST_F(SupervisorTest, TotalsOfAResumedRunAreThoseOfTheWholeRun) {
  RunProgress progress;
  progress.step = 3;
  progress.tokens = 30;
  progress.supervised = 20;
  progress.feature_seconds = 7;
  progress.train_seconds = 8;
  progress.steps_skipped = 1;
  progress.steals = 4;
  make(5, 1, 0, 0, true, progress);
  supervisor_->target_work(0, {0, 3}, false, 10, 0.5);
  run_step(3, 0);
  const RunSummary summary = supervisor_->summary();
  EXPECT_EQ(summary.tokens, 40);
  EXPECT_EQ(summary.supervised, 20);
  EXPECT_DOUBLE_EQ(summary.feature_seconds, 7.5);
  EXPECT_GT(summary.train_seconds, 8);
  EXPECT_EQ(counter(summary, "steps_skipped"), 2);
  EXPECT_EQ(counter(summary, "steals"), 4);
}

TEST_F(SupervisorTest, FirstRatesAreThoseOfTheFirstStep) {
  make(5, 1, 4);
  EXPECT_TRUE(observer_.heard("computing the features of 4 held-out samples"));
  clock_.advance(50);
  supervisor_->held_out_ready();
  clock_.advance(5);
  supervisor_->evaluated(0, diary_.evaluation_round, {}, 5);
  write(0);
  clock_.advance(0.3);
  run_step(0);
  ASSERT_EQ(observer_.steps().size(), 1u);
  EXPECT_NEAR(observer_.steps()[0].eta_seconds, 4 * 0.3, 1e-6);
  EXPECT_NEAR(observer_.steps()[0].wait_share, 1 - 0.2 / 0.3, 1e-6);
}

TEST_F(SupervisorTest, FailureNamesTheStepAndItsMicroBatches) {
  make(5, 1, 0);
  write(0);
  run_step(0);
  supervisor_->failed("trainer 0 on cpu:0", data_loss("the loss is nan"));
  ASSERT_TRUE(diary_.end);
  EXPECT_NE(diary_.end->message().find(
                "trainer 0 on cpu:0, step 1 (epoch 0, micro-batches 1 to 1): the loss is nan"),
            std::string::npos)
      << diary_.end->message();
}

TEST_F(SupervisorTest, FailedReductionEndsTheRunOnlyIfNoDeathIsKnownInTime) {
  make(5, 2, 0);
  write(0);
  diary_.read();
  const Status left = unavailable("a member left");
  supervisor_->step_computed(0, 0);
  supervisor_->reduce_failed(0, 0, 0, left);
  clock_.advance(29);
  supervisor_->tick(0);
  supervisor_->worker_lost(WorkerKind::kTrainer, 1);
  EXPECT_EQ(diary_.read(), "reduce0 regroup1");
  supervisor_->reduce_failed(0, 0, 0, left);  // of the group before
  clock_.advance(40);
  supervisor_->tick(0);
  EXPECT_FALSE(diary_.end);
  supervisor_->reduce_failed(0, 0, 1, left);
  clock_.advance(31);
  supervisor_->tick(0);
  ASSERT_TRUE(diary_.end);
  EXPECT_NE(diary_.end->message().find("no worker was found dead"), std::string::npos)
      << diary_.end->message();
}

TEST_F(SupervisorTest, ATrainerLeavesBetweenTwoSteps) {
  make(5, 2, 0);
  write(0);
  diary_.read();
  supervisor_->worker_retired(WorkerKind::kTrainer, 1);
  supervisor_->worker_retired(WorkerKind::kTrainer, 1);
  EXPECT_EQ(diary_.read(), "retired1");
  run_step(0);
  EXPECT_EQ(diary_.read(), "reduce0 commit0 apply0 regroup1 open1");
  EXPECT_FALSE(supervisor_->there(WorkerKind::kTrainer, 1));
  supervisor_->worker_ready(WorkerKind::kTrainer, 1);
  EXPECT_FALSE(supervisor_->there(WorkerKind::kTrainer, 1)) << "it was to leave for good";
  EXPECT_EQ(counter(supervisor_->summary(), "micro_batches_recomputed_since_start"), 0);
}

TEST_F(SupervisorTest, ATrainerThatLeavesWritesItsCheckpointFirst) {
  make(5, 2, 0, 1);
  write(0);
  supervisor_->order(RunOrder::kPause);
  diary_.read();
  run_step(0);
  supervisor_->worker_retired(WorkerKind::kTrainer, 0);
  EXPECT_EQ(diary_.read(), "reduce0 commit0 apply0 snapshot1 retired0") << "trainer 0 copies it";
  write(1);
  EXPECT_EQ(diary_.read(), "write1 best1 regroup1") << "also of a run that is held";
  EXPECT_FALSE(supervisor_->there(WorkerKind::kTrainer, 0));
}

TEST_F(SupervisorTest, TheOnlyTrainerStaysUntilAnotherHasCome) {
  make(5, 1, 0);
  write(0);
  diary_.read();
  supervisor_->worker_added(WorkerKind::kTrainer, 1, 0, "alpha/cpu:5");
  supervisor_->worker_retired(WorkerKind::kTrainer, 0);
  run_step(0);
  EXPECT_EQ(diary_.read(), "added1 retired0 reduce0 commit0 apply0 open1");
  supervisor_->worker_ready(WorkerKind::kTrainer, 1);
  run_step(1);
  write(2);
  EXPECT_EQ(diary_.read(), "reduce1 commit1 apply1 snapshot2 write2 best2");
  supervisor_->restored(0, diary_.restore_round, 7, ok_status());
  supervisor_->restored(1, diary_.restore_round, 7, ok_status());
  EXPECT_EQ(diary_.read(), "regroup2 open2");
  EXPECT_TRUE(supervisor_->there(WorkerKind::kTrainer, 1));
  EXPECT_FALSE(supervisor_->there(WorkerKind::kTrainer, 0));
}

TEST_F(SupervisorTest, LastWordsOfALostWorkerAreNoNews) {
  make(5, 2, 0);
  write(0);
  supervisor_->worker_lost(WorkerKind::kTrainer, 1);
  supervisor_->worker_failed(WorkerKind::kTrainer, 1, "trainer 1", data_loss("the loss is nan"));
  EXPECT_FALSE(diary_.end);
  supervisor_->worker_failed(WorkerKind::kTrainer, 0, "trainer 0", data_loss("the loss is nan"));
  EXPECT_TRUE(diary_.end);
}

}  // namespace
}  // namespace percheron
