#include "base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace percheron {
namespace {

TEST(Log, WritesUtcTimeLevelAndMessageToStderr) {
  testing::internal::CaptureStderr();
  log_warning("{} of {} shards are unreadable", 2, 5);
  const std::string line = testing::internal::GetCapturedStderr();
  EXPECT_THAT(
      line, testing::MatchesRegex("....-..-..T..:..:...*Z warning 2 of 5 shards are unreadable\n"));
}

TEST(Log, LeavesBracesInArgumentsAlone) {
  testing::internal::CaptureStderr();
  log_error("{}", "{not a format}");
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("error {not a format}\n"));
}

}  // namespace
}  // namespace percheron
