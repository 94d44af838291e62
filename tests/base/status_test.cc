#include "base/status.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace percheron {
namespace {

Result<int> half(int number) {
  if (number % 2 != 0) return invalid_argument("odd");
  return number / 2;
}

Result<int> quarter(int number) {
  PERCHERON_ASSIGN_OR_RETURN(const int once, half(number));
  return half(once);
}

Status check_quarter(int number) {
  PERCHERON_RETURN_IF_ERROR(quarter(number).status());
  return ok_status();
}

TEST(Status, ContextGoesBeforeTheMessageAndLeavesOkAlone) {
  const Status status = data_loss("checksum differs").with_context("step-7/manifest");
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(status.message(), "step-7/manifest: checksum differs");
  EXPECT_TRUE(ok_status().with_context("anything").ok());
}

// A reference into the temporary would dangle before the first step.
TEST(Result, GivesItsValueToARangeFor) {
  const auto names = [] { return Result<std::vector<std::string>>({"a long name, on the heap"}); };
  static_assert(!std::is_reference_v<decltype(names().value())>);
  for (const std::string& name : names().value()) EXPECT_EQ(name, "a long name, on the heap");
}

TEST(Result, MacrosPassTheFirstErrorOn) {
  EXPECT_EQ(quarter(8).value(), 2);
  EXPECT_EQ(quarter(6).status().message(), "odd");
  EXPECT_TRUE(check_quarter(4).ok());
  EXPECT_EQ(check_quarter(3).code(), StatusCode::kInvalidArgument);
}

TEST(Result, CarriesValuesThatOnlyMove) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(3);
  const std::unique_ptr<int> value = std::move(result).value();
  EXPECT_EQ(*value, 3);
}

TEST(ResultDeathTest, ReadingTheValueOfAnErrorIsABug) {
  const Result<int> error = not_found("no such key");
  EXPECT_DEATH(error.value(), "no such key");
}

}  // namespace
}  // namespace percheron
