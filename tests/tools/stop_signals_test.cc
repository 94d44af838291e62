#include "tools/stop_signals.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <csignal>

namespace percheron {
namespace {

int heard_before = 0;
void hear(int) { ++heard_before; }

TEST(StopSignals, AreCountedOnlyWhileSomebodyPolls) {
  std::signal(SIGTERM, hear);
  std::raise(SIGTERM);
  EXPECT_EQ(heard_before, 1);
  {
    const CatchStopSignals catching;
    EXPECT_EQ(stop_signal_count(), 0);
    std::raise(SIGTERM);
    EXPECT_EQ(stop_signal_count(), 1);
  }
  std::raise(SIGTERM);
  EXPECT_EQ(heard_before, 2) << "the handler from before is back";
  EXPECT_EQ(stop_signal_count(), 1);
  std::signal(SIGTERM, SIG_DFL);
}

// Ctrl-C while weights load or the report decodes was announced and then ignored.
TEST(StopSignalsDeathTest, AnInterruptAfterwardsEndsTheProgram) {
  EXPECT_EXIT(
      {
        { const CatchStopSignals catching; }
        std::raise(SIGINT);
        _exit(0);
      },
      testing::KilledBySignal(SIGINT), "");
}

}  // namespace
}  // namespace percheron
