#include "tools/capture_line.h"
#include "tests/base/fake_clock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

namespace percheron {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string text_of(std::FILE* file) {
  std::rewind(file);
  std::string text;
  for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) text += static_cast<char>(c);
  return text;
}

TEST(CaptureLine, SaysHowFarItIsAndWhenItEnds) {
  CaptureProgress progress{1200, 1600, 2, uint64_t{3} << 30, 1210.4, 360};
  EXPECT_EQ(format_capture(progress),
            "1,200 of 1,600 samples (75%) | 3.00 GiB written | 1,210 tok/s | 2 not finite | eta 6 "
            "min 00 s");
  progress.not_finite = 0;
  EXPECT_THAT(format_capture(progress), Not(HasSubstr("finite")));
}

TEST(CaptureLine, EndCountsWhatWasFoundRemadeAndLeftOut) {
  const std::string text = format_capture_end({1500, 97, 4, 3, uint64_t{1} << 20, 60});
  for (const char* part : {"1,500 samples captured in 1 min 00 s (1.00 MiB)", "97 were there",
                           "4 had damaged files", "3 are left out"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(CaptureLine, PlainOutputHasALineNowAndThenAndTheLast) {
  std::FILE* out = std::tmpfile();
  FakeClock clock;
  CaptureLine line(out, ProgressLine::Style::kPlain, clock);
  line.on_progress({1, 4, 0, 10, 1, 1});
  line.on_progress({2, 4, 0, 20, 1, 1});
  clock.advance(11);
  line.on_progress({3, 4, 0, 30, 1, 1});
  line.on_progress({4, 4, 0, 40, 1, 0});
  line.on_progress({4, 4, 0, 40, 1, 0});
  const std::string text = text_of(out);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
  EXPECT_THAT(text, HasSubstr("1 of 4"));
  EXPECT_THAT(text, Not(HasSubstr("2 of 4")));
  EXPECT_THAT(text, HasSubstr("3 of 4"));
  EXPECT_THAT(text, HasSubstr("4 of 4 samples (100%)"));
  std::fclose(out);
}

}  // namespace
}  // namespace percheron
