// What a run leaves when it is stopped, killed or out of disk, and that it goes on from there.

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <functional>
#include <thread>

#include "actors/run_checkpoint.h"
#include "base/random.h"
#include "data/checkpoint.h"
#include "data/training_state.h"
#include "proto/checkpoint.pb.h"
#include "tests/actors/tiny_run.h"
#include "tests/base/forwarding_file_system.h"
#include "tests/model/toy_model.h"

namespace percheron {
namespace {

/// A child that trains.
class Child {
 public:
  Child(const proto::Run& run, const std::string& log) {
    std::string text;
    google::protobuf::TextFormat::PrintToString(run, &text);
    const std::string config = run.output().directory() + ".textproto";
    write_file(config, text);
    pid_ = fork();
    if (pid_ == 0) {
      if (!std::freopen(log.c_str(), "w", stdout)) _exit(3);
      execl(PERCHERON_TINY_TRAIN, PERCHERON_TINY_TRAIN, config.c_str(), nullptr);
      _exit(3);
    }
  }
  void send(int signal) const { kill(pid_, signal); }
  /// Whether there is a status to wait for.
  bool ended() const {
    siginfo_t info{};
    return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == pid_;
  }
  /// Its exit status; -SIGNAL when a signal ended it.
  int wait() const {
    int status = 0;
    waitpid(pid_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
};

/// Two targets; one trainer that may steal, or two with a fixed assignment.
proto::Run long_run(const std::string& name, int trainers, int64_t epochs) {
  proto::Run run = make_tiny_run(name, {.epochs = epochs, .micro_batches_per_step = 4});
  run.mutable_checkpoint()->set_every_steps(3);
  if (trainers > 1) run.mutable_mailbox()->set_assignment(proto::Mailbox::FIXED);
  place(run, 2, trainers);
  return run;
}

int64_t steps_of(const proto::Run& run) {
  const auto setup = resolve_run(run, system_files());
  EXPECT_TRUE(setup.ok()) << setup.status().message();
  return (*setup)->steps.steps();
}

/// What the latest checkpoint of a run remembers.
proto::TrainingState latest_state(const proto::Run& run) {
  proto::TrainingState state;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
      read_file(
          join_path(run.output().directory(), "latest/training_state/training_state.textproto")),
      &state));
  return state;
}

/// The step that `latest` points at; -1 before there is one.
int64_t latest_step(const proto::Run& run) {
  const auto target = system_files().read_symlink(join_path(run.output().directory(), "latest"));
  return target.ok() ? std::stoll(target->substr(target->rfind('-') + 1)) : -1;
}

constexpr int64_t kKilledEpochs = 40;

/// Kills a run until it has been killed `kills` times, then lets it end: half of the times soon
/// after it has written a checkpoint, which is between its first step and its last, the other half
/// at any moment.
void expect_same_end_after_kills(int trainers, int kills, uint64_t seed) {
  proto::Run reference = long_run("kill_reference", trainers, kKilledEpochs);
  RecordingObserver undisturbed;
  ASSERT_TRUE(train_tiny(reference, undisturbed).ok());
  const std::string expected = latest_masters(reference);

  proto::Run run = long_run("kill", trainers, kKilledEpochs);
  const std::string log = run.output().directory() + ".log";
  const int64_t steps = steps_of(run);
  Random random(seed);
  int killed_between = 0;
  for (int kill = 0; kill < kills; ++kill) {
    const bool after_progress = kill < kills / 2;
    const uint64_t delay_ms = random.below(after_progress ? 10 : 400);
    SCOPED_TRACE(testing::Message()
                 << "seed " << seed << " kill " << kill << " after " << delay_ms << " ms");
    const int64_t before = std::max<int64_t>(0, latest_step(run));
    const Child child(run, log);
    while (after_progress && latest_step(run) <= before && !child.ended()) {
      std::this_thread::yield();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
    child.send(SIGKILL);
    const int status = child.wait();
    EXPECT_TRUE(status == 0 || status == -SIGKILL) << read_file(log);
    const int64_t reached = latest_step(run);
    if (status == -SIGKILL && 0 < reached && reached < steps) ++killed_between;
  }
  EXPECT_GE(killed_between, kills / 4) << "kills that fall outside prove nothing";
  const Child last(run, log);
  ASSERT_EQ(last.wait(), 0) << read_file(log);
  EXPECT_EQ(latest_masters(run), expected);
  // The audit: every step and micro-batch once, in the same order.
  const proto::TrainingState state = latest_state(run), whole = latest_state(reference);
  EXPECT_EQ(state.ledger().steps_committed(), whole.ledger().steps_committed());
  EXPECT_EQ(state.ledger().micro_batches_committed(), whole.ledger().micro_batches_committed());
  EXPECT_EQ(state.ledger().crc32c(), whole.ledger().crc32c());
  EXPECT_EQ(state.tokens_trained(), whole.tokens_trained());
  EXPECT_EQ(state.totals().supervised_tokens(), whole.totals().supervised_tokens());
  EXPECT_EQ(state.samples_trained(), whole.samples_trained());
  EXPECT_EQ(state.samples_trained(), kKilledEpochs * 24) << "each sample once an epoch";
}

// SpecForge bcb2ec2a, fb85f10f: wherever the kill falls, the end is the same.
TEST(Resume, KilledAtTenRandomMomentsTheParametersEndBitIdentical) {
  RecordProperty("seed", "20250301");
  expect_same_end_after_kills(1, 10, 20250301);
}

TEST(Resume, FixedAssignmentEndsBitIdenticalWithTwoTrainersToo) {
  RecordProperty("seed", "20250302");
  expect_same_end_after_kills(2, 4, 20250302);
}

TEST(Resume, SigtermSavesAtTheNextStepAndTheSameCommandGoesOn) {
  proto::Run run = make_tiny_run("sigterm", {.epochs = 400});
  const Child child(run, run.output().directory() + ".log");
  const std::string latest = join_path(run.output().directory(), "latest");
  while (!std::filesystem::exists(latest)) std::this_thread::yield();
  child.send(SIGTERM);
  ASSERT_EQ(child.wait(), 0) << read_file(run.output().directory() + ".log");
  const auto found = find_latest(system_files(), run.output().directory());
  ASSERT_TRUE(found.ok() && found->checkpoint);
  EXPECT_LT(found->checkpoint->step, steps_of(run));
  run.mutable_train()->clear_epochs();
  run.mutable_train()->set_steps(found->checkpoint->step + 2);
  RecordingObserver observer;
  const Result<RunSummary> summary = train_tiny(run, observer);
  ASSERT_TRUE(summary.ok()) << summary.status().message();
  ASSERT_EQ(observer.steps().size(), 2u);
  EXPECT_EQ(observer.steps()[0].step, found->checkpoint->step + 1);
}

// TorchSpec#43, speculators#898: a stop in the middle of an epoch skips and repeats nothing.
TEST(Resume, StoppedMidEpochTheRemainingStepsAreThoseOfTheWholeRun) {
  proto::Run reference = make_tiny_run("mid_reference", {.epochs = 2});
  RecordingObserver whole;
  ASSERT_TRUE(train_tiny(reference, whole).ok());

  proto::Run run = make_tiny_run("mid", {.epochs = 2});
  std::atomic<int> signals{0};
  class StopAtTwo : public RecordingObserver {
   public:
    explicit StopAtTwo(std::atomic<int>& signals) : signals_(signals) {}
    void on_step(const StepReport& report) override {
      RecordingObserver::on_step(report);
      if (report.step == 2) signals_ = 1;
    }

   private:
    std::atomic<int>& signals_;
  } first(signals);
  const Result<RunSummary> stopped = train_tiny(run, first, &signals);
  ASSERT_TRUE(stopped.ok()) << stopped.status().message();
  RecordingObserver second;
  const Result<RunSummary> resumed = train_tiny(run, second);
  ASSERT_TRUE(resumed.ok()) << resumed.status().message();
  ASSERT_EQ(first.steps().size() + second.steps().size(), whole.steps().size());
  for (size_t i = 0; i < whole.steps().size(); ++i) {
    const StepReport& step =
        i < first.steps().size() ? first.steps()[i] : second.steps()[i - first.steps().size()];
    EXPECT_EQ(step.step, whole.steps()[i].step);
    EXPECT_EQ(step.loss, whole.steps()[i].loss) << "step " << i;
    EXPECT_EQ(step.learning_rate, whole.steps()[i].learning_rate) << "step " << i;
    EXPECT_EQ(step.tokens_total, whole.steps()[i].tokens_total) << "step " << i;
  }
  EXPECT_EQ(latest_masters(run), latest_masters(reference));
}

// Model-Optimizer#2410.
TEST(Resume, ChangedDataIsRefusedNamingTheField) {
  proto::Run run = make_tiny_run("changed", {.epochs = 1});
  RecordingObserver observer;
  ASSERT_TRUE(train_tiny(run, observer).ok());
  run.mutable_data()->set_token_budget(80);
  run.mutable_train()->set_epochs(2);
  const Result<RunSummary> refused = train_tiny(run, observer);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.status().message().find("data.token_budget"), std::string::npos)
      << refused.status().message();
}

TEST(Resume, FalseRefusesADirectoryThatHoldsACheckpoint) {
  proto::Run run = make_tiny_run("not_resumed", {.epochs = 1});
  RecordingObserver observer;
  ASSERT_TRUE(train_tiny(run, observer).ok());
  run.mutable_checkpoint()->set_resume(false);
  const Result<RunSummary> refused = train_tiny(run, observer);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("checkpoint.resume"), std::string::npos);
}

/// The operating system's files, except that the disk is full from the nth created file on, for a
/// while.
class FullDisk final : public ForwardingFileSystem {
 public:
  std::atomic<bool> full{false};

  Result<std::unique_ptr<WritableFile>> create(const std::string& path) override {
    if (full) return resource_exhausted(path + ": No space left on device");
    return ForwardingFileSystem::create(path);
  }
};

// A full disk, as in speculators#509.
TEST(Resume, FullDiskIsSaidTheRunGoesOnAndTheCheckpointBeforeStaysValid) {
  proto::Run run = make_tiny_run("full_disk", {.epochs = 4});
  run.mutable_checkpoint()->set_every_steps(2);
  FullDisk files;
  class FillLater : public RecordingObserver {
   public:
    explicit FillLater(FullDisk& files) : files_(files) {}
    void on_checkpoint(const CheckpointReport& report) override {
      RecordingObserver::on_checkpoint(report);
      files_.full = report.step == 2;  // the one of step 4 fails, or a later one
    }

   private:
    FullDisk& files_;
  } observer(files);
  const std::atomic<int> none{0};
  const Result<RunSummary> summary =
      train(run, RunEnvironment{files, system_clock(), observer, none});
  ASSERT_TRUE(summary.ok()) << summary.status().message();
  EXPECT_GE(counter(*summary, "checkpoint_failures_since_start"), 1);
  EXPECT_TRUE(observer.heard("No space left"));
  const auto latest = find_latest(system_files(), run.output().directory());
  ASSERT_TRUE(latest.ok() && latest->checkpoint);
  EXPECT_EQ(latest->checkpoint->step, summary->steps);
}

TEST(Resume, ReadOnlyOutputFailsBeforeTheFirstStep) {
  proto::Run run = make_tiny_run("read_only", {.epochs = 1});
  FullDisk files;
  files.full = true;
  RecordingObserver observer;
  const std::atomic<int> none{0};
  const Result<RunSummary> summary =
      train(run, RunEnvironment{files, system_clock(), observer, none});
  ASSERT_FALSE(summary.ok());
  EXPECT_EQ(summary.status().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(observer.steps().empty());
}

/// A run of one epoch that is over.
proto::Run finished_run(const std::string& name, int64_t held_out = 0) {
  proto::Run run = make_tiny_run(name, {.held_out = held_out, .epochs = 1});
  RecordingObserver observer;
  const Result<RunSummary> summary = train_tiny(run, observer);
  EXPECT_TRUE(summary.ok()) << summary.status().message();
  return run;
}

void expect_refused(const proto::Run& run, const std::string& part) {
  RecordingObserver observer;
  const Result<RunSummary> refused = train_tiny(run, observer);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.status().message().find(part), std::string::npos) << refused.status().message();
}

TEST(Resume, NeverBeginsAnewOverDamagedCheckpoints) {
  proto::Run run = finished_run("damaged");
  const std::string output = run.output().directory();
  const auto names = system_files().list(output);
  for (const std::string& name : *names) {
    if (name.starts_with("step-"))
      write_file(join_path(join_path(output, name), "manifest.json"), "{");
  }
  expect_refused(run, "none of them is complete");
  run.mutable_checkpoint()->set_resume(false);
  expect_refused(run, "checkpoint.resume");
  EXPECT_EQ(*system_files().list(output), *names) << "nothing was removed";
}

TEST(Resume, SecondRunInTheSameDirectoryIsRefusedAndTouchesNothing) {
  const proto::Run run = finished_run("locked");
  const std::string output = run.output().directory();
  const auto lock = system_files().lock(join_path(output, ".lock"));
  ASSERT_TRUE(lock.ok()) << lock.status().message();
  const std::string written_now = join_path(output, ".step-00000099.tmp-0");
  ASSERT_TRUE(system_files().create_directories(written_now).ok());
  expect_refused(run, "process " + std::to_string(getpid()));
  EXPECT_TRUE(system_files().exists(written_now));
}

TEST(Resume, CursorAndLedgerMustBeThisRuns) {
  const proto::Run run = finished_run("ledger");
  const auto setup = resolve_run(run, system_files());
  ASSERT_TRUE(setup.ok()) << setup.status().message();
  const std::string path = join_path(run.output().directory(), "latest");
  const std::string file = join_path(path, "training_state/training_state.textproto");
  const proto::TrainingState good = latest_state(run);
  const CheckpointSettings settings{*setup, fingerprint_of(good),
                                    std::make_shared<BatchSource>(*setup, system_clock())};
  EXPECT_TRUE(read_run_checkpoint(system_files(), path, settings).ok());
  const auto refused = [&](const std::function<void(proto::TrainingState&)>& change,
                           const char* part) {
    proto::TrainingState state = good;
    change(state);
    write_file(file, training_state_text(state));
    const auto point = read_run_checkpoint(system_files(), path, settings);
    ASSERT_FALSE(point.ok()) << part;
    EXPECT_EQ(point.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(point.status().message().find(part), std::string::npos) << point.status().message();
  };
  refused([](auto& state) { state.mutable_ledger()->set_crc32c(1); }, "the ledger");
  refused([](auto& state) { state.mutable_ledger()->set_micro_batches_committed(1); },
          "1 micro-batches");
  refused([](auto& state) { state.set_epoch(7); }, "of epoch 7");
  refused([](auto& state) { state.set_next_micro_batch(3); }, "micro-batch 3");
  refused([](auto& state) { state.set_micro_batches_per_step(5); }, "with 5 a step");
}

TEST(Resume, RunThatEndedInsideAnEpochGoesOnAsIfItHadBeenLonger) {
  proto::Run run = make_tiny_run("longer", {.epochs = 1});
  run.mutable_schedule()->set_kind(proto::Schedule::CONSTANT);
  run.mutable_schedule()->set_warmup_steps(0);
  run.mutable_train()->clear_epochs();
  proto::Run whole = run;
  whole.mutable_output()->set_directory(run.output().directory() + "_whole");
  whole.mutable_train()->set_steps(4);
  RecordingObserver observer;
  ASSERT_TRUE(train_tiny(whole, observer).ok());
  for (const int64_t steps : {2, 4}) {
    run.mutable_train()->set_steps(steps);
    const Result<RunSummary> summary = train_tiny(run, observer);
    ASSERT_TRUE(summary.ok()) << summary.status().message();
  }
  EXPECT_EQ(latest_masters(run), latest_masters(whole));
  EXPECT_TRUE(observer.heard("schedule.steps was 2 and is now 4"));
}

TEST(Resume, ChangedRatesAreSaid) {
  proto::Run run = finished_run("rate");
  run.mutable_optimizer()->set_learning_rate(1e-3);
  run.mutable_train()->set_epochs(2);
  RecordingObserver observer;
  const Result<RunSummary> summary = train_tiny(run, observer);
  ASSERT_TRUE(summary.ok()) << summary.status().message();
  EXPECT_TRUE(observer.heard("optimizer.learning_rate was 0.01 and is now 0.001"));
  EXPECT_EQ(summary->epochs, 2);
  const std::vector<StepReport>& steps = observer.steps();
  ASSERT_FALSE(steps.empty());
  EXPECT_LE(steps.back().learning_rate, 1e-3);
}

// A crash between a checkpoint and the move of `best` once let rotation remove the best one.
TEST(Resume, BestLinkIsMadeAgain) {
  const proto::Run run = finished_run("best_link", 4);
  const std::string link = join_path(run.output().directory(), "best");
  const auto target = system_files().read_symlink(link);
  ASSERT_TRUE(target.ok()) << target.status().message();
  ASSERT_TRUE(system_files().remove_all(link).ok());
  RecordingObserver observer;
  const Result<RunSummary> again = train_tiny(run, observer);
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(*system_files().read_symlink(link), *target);
}

}  // namespace
}  // namespace percheron
