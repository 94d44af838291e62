// What a run leaves when it is stopped, killed or out of disk, and that it goes on from there.

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <thread>

#include "base/random.h"
#include "data/checkpoint.h"
#include "proto/checkpoint.pb.h"
#include "tests/actors/tiny_run.h"
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
proto::Run long_run(const std::string& name, int trainers) {
  proto::Run run = make_tiny_run(name, {.epochs = 4, .micro_batches_per_step = 4});
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

/// Kills a run at random moments until it has been killed `kills` times, then lets it end.
void expect_same_end_after_kills(int trainers, int kills, uint64_t seed) {
  proto::Run reference = long_run("kill_reference", trainers);
  RecordingObserver undisturbed;
  ASSERT_TRUE(train_tiny(reference, undisturbed).ok());
  const std::string expected = latest_masters(reference);

  proto::Run run = long_run("kill", trainers);
  const std::string log = run.output().directory() + ".log";
  Random random(seed);
  for (int kill = 0; kill < kills; ++kill) {
    const uint64_t delay_ms = 20 + random.below(400);
    SCOPED_TRACE(testing::Message()
                 << "seed " << seed << " kill " << kill << " after " << delay_ms << " ms");
    const Child child(run, log);
    std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
    child.send(SIGKILL);
    const int status = child.wait();
    EXPECT_TRUE(status == 0 || status == -SIGKILL) << read_file(log);
  }
  const Child last(run, log);
  ASSERT_EQ(last.wait(), 0) << read_file(log);
  EXPECT_EQ(latest_masters(run), expected);
  // The audit: every step and micro-batch once, in the same order.
  const proto::TrainingState state = latest_state(run), whole = latest_state(reference);
  EXPECT_EQ(state.ledger().ShortDebugString(), whole.ledger().ShortDebugString());
  EXPECT_EQ(state.tokens_trained(), whole.tokens_trained());
  EXPECT_EQ(state.samples_trained(), whole.samples_trained());
  EXPECT_EQ(state.samples_trained(), 4 * 24) << "each sample once an epoch";
}

// SpecForge bcb2ec2a, fb85f10f (C52, C68, C69): wherever the kill falls, the end is the same.
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

// TorchSpec#43, speculators#898 (C77): a stop in the middle of an epoch skips and repeats nothing.
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

// MO#2410 (C85).
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
class FullDisk final : public FileSystem {
 public:
  std::atomic<bool> full{false};

  Result<std::unique_ptr<WritableFile>> create(const std::string& path) override {
    if (full) return resource_exhausted(path + ": No space left on device");
    return files_.create(path);
  }
  Result<std::unique_ptr<WritableFile>> create_new(const std::string& path) override {
    return files_.create_new(path);
  }
  Result<std::unique_ptr<WritableFile>> open_append(const std::string& path) override {
    return files_.open_append(path);
  }
  Result<std::unique_ptr<MappedFile>> map(const std::string& path) override {
    return files_.map(path);
  }
  Result<std::string> read_text(const std::string& path) override { return files_.read_text(path); }
  Result<uint64_t> file_size(const std::string& path) override { return files_.file_size(path); }
  bool exists(const std::string& path) override { return files_.exists(path); }
  Result<std::vector<std::string>> list(const std::string& path) override {
    return files_.list(path);
  }
  Status create_directories(const std::string& path) override {
    return files_.create_directories(path);
  }
  Status rename(const std::string& from, const std::string& to) override {
    return files_.rename(from, to);
  }
  Status remove_all(const std::string& path) override { return files_.remove_all(path); }
  Status sync_directory(const std::string& path) override { return files_.sync_directory(path); }
  Status replace_symlink(const std::string& target, const std::string& link) override {
    return files_.replace_symlink(target, link);
  }
  Result<std::string> read_symlink(const std::string& link) override {
    return files_.read_symlink(link);
  }
  Result<std::unique_ptr<FileLock>> lock(const std::string& path) override {
    return files_.lock(path);
  }
  Result<uint64_t> free_bytes(const std::string& path) override { return files_.free_bytes(path); }

 private:
  FileSystem& files_ = system_files();
};

// C84.
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
  EXPECT_GE(counter(*summary, "checkpoint_failures"), 1);
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

}  // namespace
}  // namespace percheron
