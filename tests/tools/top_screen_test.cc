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
  top.state = "training";
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
  top.steals = {{{0, 1}, 17}, {{1, 0}, 140}};
  top.restarts = 1;
  return top;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

TEST(TopScreen, ShowsEverythingAt160Columns) {
  EXPECT_EQ("\n" + joined(top_screen(busy_run(), 160)), R"(
percheron  eagle3  training
step     [##########..........] 830/1600 (52%), 6 min 00 s left
drafter  loss 6.530, accepted length 1.58 in training, 1.569 held out
rate     12,345 tokens/s; capacity of targets 31.2, of trainers 55.1 samples/s
slowest  the targets: trainers wait 43% of their time for features, targets compute 99% of theirs; give placement.targets another device
workers  3
  target 0    gpu1/cuda:0              compute    [####################]  99% busy   1% wait    31.2 smp/s   640 W  98% of gpu
  trainer 0   gpu2/cuda:0              features   [###########.........]  57% busy  43% wait    15.6 smp/s   310 W  55% of gpu
  trainer 1   gpu2/cuda:1              lost       [....................]   0% busy   0% wait     0.0 smp/s
features [##########..........] 512 MiB of 1.00 GiB (50%)
mailbox  home 0: 3 (3.00 MiB), home 1: 0 (0 B); 2 of later steps
steals   157; 1 from 0: 140, 0 from 1: 17
deaths   1 workers were started again, 0 leases ran out
)");
}

TEST(TopScreen, FitsInto80Columns) {
  EXPECT_EQ("\n" + joined(top_screen(busy_run(), 80)), R"(
percheron  eagle3  training
step     [##########..........] 830/1600 (52%), 6 min 00 s left
drafter  loss 6.530, accepted length 1.58 in training, 1.569 held out
rate     12,345 tokens/s; capacity of targets 31.2, of trainers 55.1 samples/s
slowest  the targets: trainers wait 43% of their time for features, targets
         compute 99% of theirs; give placement.targets another device
workers  3
  target 0    gpu1/cuda:0  compute      99% busy   1% wait    31.2 smp/s   640 W
  trainer 0   gpu2/cuda:0  features     57% busy  43% wait    15.6 smp/s   310 W
  trainer 1   gpu2/cuda:1  lost          0% busy   0% wait     0.0 smp/s
features [##########..........] 512 MiB of 1.00 GiB (50%)
mailbox  home 0: 3 (3.00 MiB), home 1: 0 (0 B); 2 of later steps
steals   157; 1 from 0: 140, 0 from 1: 17
deaths   1 workers were started again, 0 leases ran out
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
  for (const int width : {0, 60, 80, 119, 120, 160, 400}) {
    for (const std::string& line : top_screen(top, width)) {
      EXPECT_LE(line.size(), static_cast<size_t>(std::max(width, kTopWidthMin))) << line;
      EXPECT_TRUE(std::ranges::all_of(line, [](char c) { return c >= ' ' && c <= '~'; })) << line;
    }
  }
}

TEST(TopScreen, WorkersBeyondTheHeightAreCounted) {
  TopSnapshot top = busy_run();
  top.workers.assign(50, top.workers.front());
  const auto lines = top_screen(top, 80, 24);
  EXPECT_EQ(lines.size(), 24u);
  EXPECT_THAT(lines, Contains(HasSubstr("more workers")));
  EXPECT_THAT(lines, Contains(HasSubstr("workers  50")));
}

TEST(TopScreen, ARunThatJustBeganShowsNoNumbersThatAreNotThere) {
  TopSnapshot top;
  top.run = "new";
  top.state = "loading";
  top.bottleneck = "not known yet";
  const std::string text = joined(top_screen(top, 80));
  EXPECT_THAT(text, AllOf(HasSubstr("0/0 (0%)"), HasSubstr("not known yet"),
                          Not(HasSubstr("held out")), Not(HasSubstr("nan"))));
}

TEST(TopSnapshot, SharesAreThoseBetweenTwoLooks) {
  RunActivitySnapshot before, now;
  before.trainers.resize(1);
  now.trainers.resize(1);
  before.trainers[0].seconds[Occupation::kCompute] = 100;
  now.trainers[0].device = "cuda:1";
  now.trainers[0].now = Occupation::kFeatures;
  now.trainers[0].seconds[Occupation::kCompute] = 101;
  now.trainers[0].seconds[Occupation::kUpdate] = 0.5;
  now.trainers[0].seconds[Occupation::kFeatures] = 0.5;
  now.trainers[0].samples = 10;
  now.devices["cuda:1"] = {450, 0.7, 0, 0};
  const TopSnapshot top = top_snapshot(RunStatus(), "training", now, &before, 2);
  ASSERT_EQ(top.workers.size(), 1u);
  EXPECT_EQ(top.workers[0].name, "trainer 0");
  EXPECT_EQ(top.workers[0].state, "features");
  EXPECT_DOUBLE_EQ(top.workers[0].busy_share, 0.75);
  EXPECT_DOUBLE_EQ(top.workers[0].wait_share, 0.25);
  EXPECT_DOUBLE_EQ(top.workers[0].samples_per_second, 5);
  EXPECT_DOUBLE_EQ(top.workers[0].power_watts, 450);
}

}  // namespace
}  // namespace percheron
