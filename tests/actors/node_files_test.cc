// What a node does for its own disk: logs that rotate, runs that are forgotten.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "actors/node/process_logs.h"
#include "actors/node/run_book.h"
#include "actors/node/run_cleanup.h"
#include "actors/policy/run_retention.h"
#include "base/random.h"
#include "tests/base/fake_clock.h"
#include "tests/base/fault_file_system.h"
#include "tests/test_seed.h"

namespace percheron {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr double kDay = 86400;
constexpr double kToday = 1893456000;  // 2030-01-01

std::vector<std::string> names(const std::vector<FinishedRun>& runs) {
  std::vector<std::string> names;
  for (const FinishedRun& run : runs) names.push_back(run.run);
  return names;
}

TEST(RunRetention, TheOldestGoFirstByNumberOrByDays) {
  const std::vector<FinishedRun> runs = {
      {"new", kToday - kDay}, {"old", kToday - 100 * kDay}, {"middle", kToday - 50 * kDay}};
  const auto forget = [&](int runs_max, double days_max) {
    return names(runs_to_forget(runs, {runs_max, days_max}, kToday));
  };
  EXPECT_THAT(forget(3, 0), IsEmpty());
  EXPECT_THAT(forget(2, 0), ElementsAre("old"));
  EXPECT_THAT(forget(1, 0), ElementsAre("old", "middle"));
  EXPECT_THAT(forget(0, 0), IsEmpty()) << "no limit";
  EXPECT_THAT(forget(0, 99.9), ElementsAre("old"));
  EXPECT_THAT(forget(0, 100.1), IsEmpty());
  EXPECT_THAT(forget(2, 40), ElementsAre("old", "middle"));
  EXPECT_THAT(forget(1, 99.9), ElementsAre("old", "middle"));
}

TEST(RunRetention, AnEndThatLiesAheadIsNew) {
  EXPECT_THAT(names(runs_to_forget({{"ahead", kToday + kDay}, {"now", kToday}}, {1, 90}, kToday)),
              ElementsAre("now"));
}

/// A process that writes to its log, and opens it again when it is told to.
class Writer {
 public:
  Writer(FileSystem& files, std::string path) : files_(files), path_(std::move(path)) { reopen(); }
  void say(const std::string& text) {
    ASSERT_TRUE(file_->append(std::as_bytes(std::span(text))).ok());
  }
  void reopen() {
    Result<std::unique_ptr<WritableFile>> file = files_.open_append(path_);
    ASSERT_TRUE(file.ok()) << file.status().message();
    file_ = std::move(file).value();
  }

 private:
  FileSystem& files_;
  const std::string path_;
  std::unique_ptr<WritableFile> file_;
};

class NodeFiles : public testing::Test {
 protected:
  NodeFiles() { EXPECT_TRUE(files_.create_directories("/state/logs/demo").ok()); }

  std::vector<std::string> log_names(const std::string& run = "demo") {
    const auto names = files_.list("/state/logs/" + run);
    return names.ok() ? *names : std::vector<std::string>();
  }

  FaultFileSystem files_;
  FakeClock clock_{kToday};
};

TEST_F(NodeFiles, AFullLogIsSetAsideAndNothingIsLostMeanwhile) {
  ProcessLogs logs(files_, "/state/logs", {10, 3});
  const std::string path = logs.path_of("demo", "cpu:0");
  EXPECT_EQ(path, "/state/logs/demo/cpu-0.log");
  EXPECT_FALSE(logs.rotate_if_full(path).value()) << "there is no log yet";
  Writer process(files_, path);
  process.say("123456789");
  EXPECT_FALSE(logs.rotate_if_full(path).value());
  process.say("0");
  EXPECT_TRUE(logs.rotate_if_full(path).value());
  process.say("late");  // It has not opened the new one yet.
  EXPECT_FALSE(logs.rotate_if_full(path).value());
  process.reopen();
  process.say("abcdefghijk");
  EXPECT_EQ(logs.read(path, 0, 100)->text, "1234567890late");
  EXPECT_EQ(logs.read(path, 12, 100)->text, "te");
  EXPECT_EQ(logs.read(path, 14, 3)->text, "abc");
  EXPECT_TRUE(logs.rotate_if_full(path).value());
  EXPECT_EQ(logs.read(path, 25, 100)->text, "") << "no new file yet";
  process.reopen();
  process.say("new");
  EXPECT_EQ(logs.read(path, 25, 100)->text, "new");
  EXPECT_THAT(log_names(), ElementsAre("cpu-0.log", "cpu-0.log.0", "cpu-0.log.14"));
}

TEST_F(NodeFiles, TheOldestLogGoesAndOffsetsKeepTheirMeaning) {
  ProcessLogs logs(files_, "/state/logs", {10, 2});
  const std::string path = logs.path_of("demo", "supervisor");
  EXPECT_FALSE(logs.read(path, 0, 100).ok());
  Writer process(files_, path);
  for (const char* text : {"0123456789", "abcdefghij", "ABC"}) {
    process.say(text);
    ASSERT_TRUE(logs.rotate_if_full(path).ok());
    process.reopen();
  }
  EXPECT_THAT(log_names(), ElementsAre("supervisor.log", "supervisor.log.10"));
  const LogPart first = logs.read(path, 0, 100).value();
  EXPECT_EQ(first.begin, 10u) << "what is missing can be told";
  EXPECT_EQ(first.text, "abcdefghij");
  EXPECT_EQ(logs.read(path, 20, 100)->text, "ABC");
  EXPECT_EQ(logs.read(path, 999, 100)->end(), 23u);
  EXPECT_EQ(logs.rotations(), 2);
  // Another daemon, with the same files.
  const ProcessLogs again(files_, "/state/logs", {10, 2});
  EXPECT_EQ(again.read(path, 20, 100)->text, "ABC");
}

// A reader that follows gets every byte once, whatever is said, rotated and read between.
TEST_F(NodeFiles, WhoFollowsReadsEveryByteOnce) {
  const TestSeed seed(20300101);
  Random random(seed.value());
  ProcessLogs logs(files_, "/state/logs", {50, 1000});
  const std::string path = logs.path_of("demo", "supervisor");
  Writer process(files_, path);
  std::string said, heard;
  bool told = false;
  for (int i = 0; i < 3000; ++i) {
    switch (random.below(4)) {
      case 0: {
        const std::string text = std::to_string(i) + "\n";
        process.say(text);
        said += text;
        break;
      }
      case 1: told = logs.rotate_if_full(path).value() || told; break;
      case 2:
        if (told) process.reopen();
        told = false;
        break;
      default: {
        const LogPart part = logs.read(path, heard.size(), 1 + random.below(40)).value();
        ASSERT_EQ(part.begin, heard.size());
        heard += part.text;
      }
    }
  }
  while (true) {
    const LogPart part = logs.read(path, heard.size(), 1000).value();
    if (part.text.empty()) break;
    heard += part.text;
  }
  EXPECT_EQ(heard, said);
  EXPECT_GT(logs.rotations(), 20);
}

TEST_F(NodeFiles, RunsThatAreOverAreForgottenWithTheirLogsAndNothingElse) {
  ProcessLogs logs(files_, "/state/logs", {});
  RunBook book = RunBook::open(files_, clock_, "/state/runs").value();
  ASSERT_TRUE(files_.create_directories("/output/demo/latest").ok());
  const auto add = [&](const std::string& name, proto::RunReport::State state, double ended) {
    proto::Run config;
    config.mutable_output()->set_directory("/output/" + name);
    proto::RunRecord* record = book.add(name, "alpha", config).value();
    record->mutable_report()->set_state(state);
    record->set_submitted(ended);
    record->set_ended(ended);
    EXPECT_TRUE(book.save(*record).ok());
    EXPECT_TRUE(files_.create_directories(logs.directory_of(name)).ok());
  };
  add("demo", proto::RunReport::DONE, kToday - 91 * kDay);
  add("stopped", proto::RunReport::STOPPED, kToday - 89 * kDay);
  add("paused", proto::RunReport::PAUSED, kToday - 500 * kDay);
  add("ending", proto::RunReport::FAILED, kToday - 500 * kDay);
  RunCleanup cleanup(files_, clock_, logs, {200, 90});
  EXPECT_EQ(cleanup.forget(book, {"ending"}), 1);
  EXPECT_EQ(book.find("demo"), nullptr);
  EXPECT_THAT(logs.runs().value(), UnorderedElementsAre("stopped", "paused", "ending"));
  EXPECT_THAT(RunBook::open(files_, clock_, "/state/runs")->all(), testing::SizeIs(3));
  EXPECT_TRUE(files_.exists("/output/demo/latest"));
  clock_.advance(2 * kDay);
  EXPECT_EQ(cleanup.forget(book, {}), 2);
  EXPECT_EQ(cleanup.forgotten(), 3);
  EXPECT_THAT(logs.runs().value(), ElementsAre("paused"));
  EXPECT_THAT(files_.list("/state/logs").value(), testing::SizeIs(4)) << "out of sight";
  ASSERT_TRUE(logs.remove_set_aside().ok());
  EXPECT_THAT(files_.list("/state/logs").value(), ElementsAre("paused"));
}

// A record that another node keeps tells nothing here once it is gone there.
TEST_F(NodeFiles, LogsOfAnotherNodesRunGoSomeDaysAfterItsLastProcess) {
  ProcessLogs logs(files_, "/state/logs", {});
  RunBook book = RunBook::open(files_, clock_, "/state/runs").value();
  RunCleanup cleanup(files_, clock_, logs, {0, 90});
  EXPECT_EQ(cleanup.forget(book, {"demo"}), 0);
  clock_.advance(1000 * kDay);
  EXPECT_EQ(cleanup.forget(book, {"demo"}), 0) << "it goes on";
  clock_.advance(89 * kDay);
  EXPECT_EQ(cleanup.forget(book, {}), 0);
  clock_.advance(2 * kDay);
  EXPECT_EQ(cleanup.forget(book, {}), 1);
  EXPECT_THAT(log_names(), IsEmpty());
}

TEST_F(NodeFiles, AClockOfTheDayThatJumpsMakesNothingOldAndKeepsTheOrderOfRuns) {
  ProcessLogs logs(files_, "/state/logs", {});
  RunBook book = RunBook::open(files_, clock_, "/state/runs").value();
  RunCleanup cleanup(files_, clock_, logs, {0, 90});
  const auto end = [&](const std::string& name) {
    proto::RunRecord* record = book.add(name, "alpha", {}).value();
    record->mutable_report()->set_state(proto::RunReport::DONE);
    record->set_ended(clock_.unix_seconds());
  };
  end("z");
  EXPECT_EQ(cleanup.forget(book, {"elsewhere"}), 0);
  clock_.jump(10 * 365 * kDay);
  end("y");
  EXPECT_EQ(cleanup.forget(book, {"elsewhere"}), 0);
  clock_.jump(-11 * 365 * kDay);
  end("x");
  EXPECT_EQ(cleanup.forget(book, {}), 0);
  std::vector<std::string> order;
  for (const proto::RunRecord* record : book.all()) order.push_back(record->id());
  EXPECT_THAT(order, ElementsAre("z", "y", "x"));
  clock_.advance(91 * kDay);
  EXPECT_EQ(cleanup.forget(book, {}), 2) << "z, and the logs of the other node's run";
}

TEST_F(NodeFiles, WhatCanNotBeForgottenIsTriedAgain) {
  ProcessLogs logs(files_, "/state/logs", {});
  RunBook book = RunBook::open(files_, clock_, "/state/runs").value();
  proto::RunRecord* record = book.add("demo", "alpha", {}).value();
  record->mutable_report()->set_state(proto::RunReport::DONE);
  clock_.advance(91 * kDay);
  uint64_t failures = 0;
  RunCleanup cleanup(files_, clock_, logs, {200, 90});
  // The first two only look at what is there.
  for (uint64_t operation = 3; book.find("demo") != nullptr; ++operation) {
    files_.fail_operation(operation, resource_exhausted("no space left"));
    failures += cleanup.forget(book, {}) == 0 ? 1 : 0;
    ASSERT_LT(operation, 20u);
  }
  EXPECT_GT(failures, 2u);
  EXPECT_THAT(logs.runs().value(), IsEmpty());
}

}  // namespace
}  // namespace percheron
