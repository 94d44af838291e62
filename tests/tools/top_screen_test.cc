// The screen of `percheron top`, as text.

#include "tools/top_screen.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace percheron {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

TopSnapshot busy_run() {
  TopSnapshot top;
  top.run = "eagle3";
  top.state = "running";
  top.step = 830;
  top.steps_total = 1600;
  top.loss = 6.53;
  top.simulated_acceptance_length = 1.58;
  top.held_out_acceptance_length = 1.569;
  top.tokens_per_second = 12345;
  top.eta_seconds = 360;
  top.capture_samples_per_second = 31.2;
  top.train_samples_per_second = 55.1;
  top.bottleneck =
      "the targets: trainers wait 43% of their time for features, targets compute 99% of theirs; "
      "give placement.targets another device";
  top.workers = {{"gpu1", "target 0", "cuda:0", "compute", 0.99, 0.01, 31.2, 640, 0.98},
                 {"gpu2", "trainer 0", "cuda:0", "features", 0.57, 0.43, 15.6, 310, 0.55},
                 {"gpu2", "trainer 1", "cuda:1", "lost", 0, 0, 0, -1, -1}};
  top.homes = {{0, 3, 3 << 20}, {1, 0, 0}};
  top.queued_later = 2;
  top.store_bytes = 512 << 20;
  top.store_bytes_max = 1024 << 20;
  top.steals = {{{1, 0}, 140}, {{0, 1}, 17}};
  top.steals_total = 157;
  top.worker_restarts = 1;
  return top;
}

std::string joined(const std::vector<ScreenLine>& lines) {
  std::string text;
  for (const ScreenLine& line : lines) text += line.text() + "\n";
  return text;
}

TEST(TopScreen, ShowsEverythingAt160Columns) {
  EXPECT_EQ("\n" + joined(top_screen(busy_run(), 160)), R"(
run      eagle3  running
step     [##########..........] 830/1600 (52%), 6 min 00 s left
drafter  loss 6.530, accepted length 1.58 in training, 1.569 held out
rate     12,345 tokens/s; capacity of targets 31.2, of trainers 55.1 samples/s
slowest  the targets: trainers wait 43% of their time for features, targets compute 99% of theirs; give placement.targets another device
workers  3    where       doing                           busy waits samples/s  power  gpu
 target 0     gpu1/cuda:0 compute    [##################]  99%    1%      31.2  640 W  98%
 trainer 0    gpu2/cuda:0 features   [##########........]  57%   43%      15.6  310 W  55%
 trainer 1    gpu2/cuda:1 lost       [..................]   0%    0%       0.0      -    -
features [##########..........] 512 MiB of 1.00 GiB (50%)
mailbox  home 0: 3 (3.00 MiB), home 1: 0 (0 B); 2 of later steps
steals   157; 1 from 0: 140, 0 from 1: 17
deaths   a worker was started again once
)");
}

TEST(TopScreen, FitsInto80Columns) {
  EXPECT_EQ("\n" + joined(top_screen(busy_run(), 80)), R"(
run      eagle3  running
step     [##########..........] 830/1600 (52%), 6 min 00 s left
drafter  loss 6.530, accepted length 1.58 in training, 1.569 held out
rate     12,345 tokens/s; capacity of targets 31.2, of trainers 55.1 samples/s
slowest  the targets: trainers wait 43% of their time for features, targets
         compute 99% of theirs; give placement.targets another device
workers  3    where       doing      busy waits samples/s  power  gpu
 target 0     gpu1/cuda:0 compute     99%    1%      31.2  640 W  98%
 trainer 0    gpu2/cuda:0 features    57%   43%      15.6  310 W  55%
 trainer 1    gpu2/cuda:1 lost         0%    0%       0.0      -    -
features [##########..........] 512 MiB of 1.00 GiB (50%)
mailbox  home 0: 3 (3.00 MiB), home 1: 0 (0 B); 2 of later steps
steals   157; 1 from 0: 140, 0 from 1: 17
deaths   a worker was started again once
)");
}

TEST(TopScreen, NoLineIsWiderThanTheScreenWhateverIsInIt) {
  TopSnapshot top = busy_run();
  top.run.assign(300, 'r');
  top.run += "\x1b[2J\n";
  TopWorker wide = top.workers.front();
  wide.node = std::string(90, 'n');
  wide.name = "trainer 199";
  wide.samples_per_second = 1e9;
  wide.power_watts = 99999;
  top.workers.assign(200, wide);
  for (int home = 0; home < 200; ++home) top.homes.push_back({home, 1 << 30, ~0ull});
  for (const int width : {1, 9, 20, 40, 60, 80, 119, 120, 160, 400}) {
    for (const ScreenLine& line : top_screen(top, width)) {
      EXPECT_LE(line.width(), static_cast<size_t>(width)) << line.text();
      EXPECT_TRUE(std::ranges::all_of(line.text(), [](char c) { return c >= ' ' && c <= '~'; }))
          << line.text();
    }
  }
}

TEST(TopScreen, WorkersBeyondTheHeightAreCounted) {
  TopSnapshot top = busy_run();
  top.workers.assign(50, top.workers.front());
  EXPECT_EQ(top_screen(top, 80, 24).size(), 24u);
  const std::string text = joined(top_screen(top, 80, 24));
  EXPECT_THAT(text, AllOf(HasSubstr("more workers"), HasSubstr("workers  50")));
}

TEST(TopScreen, ColumnsGoOneByOneWhereThereIsNoRoom) {
  size_t before = 0;
  for (int width = 24; width <= 160; ++width) {
    const std::string text = joined(top_screen(busy_run(), width));
    size_t columns = 0;
    for (const char* title : {"where", "doing", "busy", "waits", "samples/s", "power", "gpu"}) {
      columns += text.find(std::string(" ") + title) != std::string::npos ? 1 : 0;
    }
    EXPECT_GE(columns, before) << width << "\n" << text;
    before = columns;
  }
  EXPECT_EQ(before, 7u);
}

TEST(TopScreen, ARunThatJustBeganShowsNoNumbersThatAreNotThere) {
  TopSnapshot top;
  top.run = "new";
  top.state = "loading";
  top.bottleneck = "not known yet";
  const std::string text = joined(top_screen(top, 80));
  EXPECT_THAT(text, AllOf(HasSubstr("none yet"), HasSubstr("not known yet"),
                          Not(HasSubstr("held out")), Not(HasSubstr("nan"))));
}

TEST(TopScreen, ARunThatDoesNotWorkShowsNoRates) {
  TopSnapshot top = busy_run();
  top.state = "paused";
  top.works = false;
  const std::string text = joined(top_screen(top, 80));
  EXPECT_THAT(text, AllOf(HasSubstr("830/1600"), Not(HasSubstr("tokens/s")),
                          Not(HasSubstr(" left")), Not(HasSubstr("slowest"))));
}

TEST(TopScreen, ASupervisorThatSaysNothingIsNamed) {
  TopSnapshot top = busy_run();
  top.silent_seconds = 75;
  EXPECT_THAT(joined(top_screen(top, 80)), HasSubstr("has said nothing for 1 min 15 s"));
}

TEST(ScreenLine, WhatIsCutSaysSo) {
  ScreenLine line("step ", ScreenStyle::kLabel);
  line.add("12345");
  ScreenLine same = line;
  same.cut(10);
  EXPECT_EQ(same.text(), "step 12345");
  line.cut(8);
  EXPECT_EQ(line.text(), "step 12~");
  line.cut(3);
  EXPECT_EQ(line.text(), "st~");
  line.cut(0);
  EXPECT_EQ(line.text(), "");
  ScreenLine blanks("ab   ");
  blanks.cut(2);
  EXPECT_EQ(blanks.width(), 2u);
  EXPECT_EQ(blanks.text(), "ab");
}

}  // namespace
}  // namespace percheron
