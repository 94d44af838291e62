// What a run leaves for people and programs: metrics.jsonl, TensorBoard events, the progress line.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/clock.h"
#include "base/file_system.h"
#include "base/hash.h"
#include "tests/base/fake_clock.h"
#include "tools/metrics_file.h"
#include "tools/metrics_history.h"
#include "tools/observer_list.h"
#include "tools/plan_time.h"
#include "tools/progress_line.h"
#include "tools/tensorboard_file.h"

namespace percheron {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

std::string fresh(const std::string& name) {
  const std::string path = testing::TempDir() + "sinks_" + name;
  EXPECT_TRUE(system_files().remove_all(path).ok());
  EXPECT_TRUE(system_files().create_directories(path).ok());
  return path;
}

StepReport step(int64_t number, double loss) {
  StepReport report;
  report.step = number;
  report.steps_total = 1600;
  report.loss = loss;
  report.position_accuracy = {0.55, 0.48};
  report.simulated_acceptance_length = 1.58;
  return report;
}

TEST(MetricsHistory, TheLaterLineOfAStepCountsAndACutLineIsIgnored) {
  const std::string path = join_path(fresh("history"), "metrics.jsonl");
  const FakeClock clock;
  {
    auto file = MetricsFile::open(system_files(), clock, path);
    ASSERT_TRUE(file.ok());
    (*file)->on_step(step(1, 9.0));
    (*file)->on_step(step(2, 8.0));
    (*file)->on_step(step(2, 7.5));  // after a resume
    (*file)->on_event("a sentence");
  }
  auto cut = system_files().open_append(path);
  ASSERT_TRUE(cut.ok());
  const std::string half = R"({"kind":"step","step":3,"train/lo)";
  ASSERT_TRUE((*cut)->append(std::as_bytes(std::span(half))).ok());
  ASSERT_TRUE((*cut)->close().ok());
  const Result<MetricsHistory> history = MetricsHistory::read(system_files(), path);
  ASSERT_TRUE(history.ok());
  EXPECT_THAT(history->series("train/loss", "loss").points,
              ElementsAre(Pair(1, 9.0), Pair(2, 7.5)));
  EXPECT_THAT(history->names("train/accuracy_"),
              ElementsAre("train/accuracy_0", "train/accuracy_1"));
}

// A byte that is no UTF-8, in a path or a sample's name, must not end the run.
TEST(MetricsFile, WritesAnyTextAndOneLineEach) {
  const std::string path = join_path(fresh("bytes"), "metrics.jsonl");
  const FakeClock clock;
  {
    auto file = MetricsFile::open(system_files(), clock, path);
    ASSERT_TRUE(file.ok());
    (*file)->on_event("sample \xff\n");
    (*file)->on_checkpoint({.step = 1, .directory = "\xfe", .error = ""});
  }
  const auto text = system_files().read_text(path);
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(std::count(text->begin(), text->end(), '\n'), 2);
}

class CountingObserver : public RunObserver {
 public:
  explicit CountingObserver(std::vector<int64_t>& steps) : steps_(steps) {}
  void on_step(const StepReport& report) override { steps_.push_back(report.step); }

 private:
  std::vector<int64_t>& steps_;
};

TEST(ObserverList, ThinsStepsButKeepsTheFirstAndTheLast) {
  std::vector<int64_t> all, some;
  ObserverList list;
  list.add(std::make_unique<CountingObserver>(all));
  list.add(std::make_unique<CountingObserver>(some), 4);
  for (int64_t number = 1; number <= 10; ++number) {
    StepReport report = step(number, 1);
    report.steps_total = 10;
    list.on_step(report);
  }
  EXPECT_EQ(all.size(), 10u);
  EXPECT_THAT(some, ElementsAre(1, 4, 8, 10));
}

TEST(PlanTime, IsPredictedFromWhatAnEarlierStartRecorded) {
  const std::string directory = fresh("plan_time");
  EXPECT_THAT(plan_time(system_files(), directory, 100), HasSubstr("not known yet"));
  const FakeClock clock;
  {
    auto file = MetricsFile::open(system_files(), clock, join_path(directory, "metrics.jsonl"));
    ASSERT_TRUE(file.ok());
    for (int64_t number = 1; number <= 80; ++number) {
      StepReport report = step(number, 1);
      report.step_seconds = number <= 30 ? 50 : 2;  // what lies far back does not count
      (*file)->on_step(report);
    }
  }
  EXPECT_THAT(plan_time(system_files(), directory, 100), HasSubstr("3 min 20 s for all steps"));
}

TEST(MetricsHistory, SmoothingIsTheMeanOfTheLastPoints) {
  const Series smooth = smoothed({"x", {{1, 2}, {2, 4}, {3, 6}}}, 2);
  EXPECT_THAT(smooth.points, ElementsAre(Pair(1, 2), Pair(2, 3), Pair(3, 5)));
}

uint32_t read_u32(const std::string& bytes, size_t at) {
  uint32_t value;
  std::memcpy(&value, bytes.data() + at, 4);
  return value;
}

uint32_t masked(const std::string& bytes) {
  const uint32_t crc = crc32c(std::as_bytes(std::span(bytes)));
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

TEST(TensorboardFile, RecordsAreFramedWithTheirChecksums) {
  const std::string directory = fresh("tensorboard");
  const FakeClock clock;
  {
    auto file = TensorboardFile::create(system_files(), clock, directory);
    ASSERT_TRUE(file.ok());
    (*file)->on_step(step(300, 2.5));
  }
  const auto text =
      system_files().read_text(join_path(directory, "events.out.tfevents.1700000000.percheron"));
  ASSERT_TRUE(text.ok());
  std::vector<std::string> records;
  for (size_t at = 0; at < text->size();) {
    uint64_t length;
    std::memcpy(&length, text->data() + at, 8);
    EXPECT_EQ(read_u32(*text, at + 8), masked(text->substr(at, 8)));
    records.push_back(text->substr(at + 12, length));
    EXPECT_EQ(read_u32(*text, at + 12 + length), masked(records.back()));
    at += 16 + length;
  }
  ASSERT_EQ(records.size(), 2u);
  EXPECT_THAT(records[0], HasSubstr("brain.Event:2"));
  // Tag, then field 2 of wire type 5 with the float.
  const float loss = 2.5f;
  std::string value("train/loss\x15");
  value.append(reinterpret_cast<const char*>(&loss), 4);
  EXPECT_THAT(records[1], HasSubstr(value));
  EXPECT_THAT(records[1], HasSubstr(std::string("\x10\xac\x02")));  // step 300 as a varint
}

TEST(ProgressLine, SaysEverythingInOneLine) {
  const std::string line = format_progress(step(800, 6.5));
  EXPECT_THAT(line, HasSubstr("step 800/1600 (50%)"));
  EXPECT_THAT(line, HasSubstr("loss 6.500"));
  EXPECT_THAT(line, HasSubstr("acc 0.55 0.48"));
  EXPECT_THAT(line, HasSubstr("accept 1.58"));
  EXPECT_THAT(line, HasSubstr("targets - trainers"));  // Nothing was computed: no rate.
  EXPECT_EQ(line.find('\n'), std::string::npos);
}

// The one before the first step ends the run when it fails.
TEST(ProgressLine, AFailedCheckpointPromisesNothing) {
  const std::string path = join_path(fresh("progress"), "out");
  const FakeClock clock;
  std::FILE* file = std::fopen(path.c_str(), "w");
  ASSERT_NE(file, nullptr);
  ProgressLine line(file, ProgressLine::Style::kPlain, clock);
  line.on_checkpoint({.step = 0, .directory = "", .error = "no room"});
  std::fclose(file);
  EXPECT_EQ(system_files().read_text(path).value(), "checkpoint of step 0 failed: no room\n");
}

}  // namespace
}  // namespace percheron
