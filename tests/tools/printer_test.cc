#include "tools/printer.h"

#include <gtest/gtest.h>

#include <memory>

#include "base/clock.h"
#include "tools/progress_line.h"

namespace percheron {
namespace {

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

File full_disk() { return {std::fopen("/dev/full", "w"), std::fclose}; }

TEST(Printer, KeepsTheFirstFailureAndNeverThrows) {
  const File file = full_disk();
  ASSERT_NE(file, nullptr);
  Printer out(file.get());
  EXPECT_TRUE(out.status().ok());
  out.print("{} tensors\n", 3);
  EXPECT_EQ(out.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(out.status().message().find("No space left"), std::string::npos)
      << out.status().message();
  out.write("more");
  EXPECT_FALSE(out.status().ok());
}

TEST(Printer, WritesWhatIsFormatted) {
  const File file{std::tmpfile(), std::fclose};
  Printer out(file.get());
  out.print("{} of {}\n", 3, 4);
  out.write("{}");
  EXPECT_TRUE(out.status().ok());
  char text[16] = {};
  std::rewind(file.get());
  EXPECT_EQ(std::fread(text, 1, sizeof(text), file.get()), 9u);
  EXPECT_EQ(std::string(text), "3 of 4\n{}");
}

// What an observer throws ends the whole run.
TEST(ProgressLine, AFullDiskDoesNotEndTheRun) {
  for (const ProgressLine::Style style :
       {ProgressLine::Style::kPlain, ProgressLine::Style::kTerminal}) {
    const File file = full_disk();
    ProgressLine line(file.get(), style, system_clock());
    StepReport report;
    report.step = 1;
    line.on_step(report);
    line.on_checkpoint({.step = 1, .directory = "d", .error = ""});
    line.on_event("a sentence");
    line.on_end(RunSummary());
  }
}

}  // namespace
}  // namespace percheron
