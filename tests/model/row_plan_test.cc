#include "model/row_plan.h"

#include <gtest/gtest.h>

#include "model/target.h"

namespace percheron {
namespace {

std::vector<int32_t> causal(const std::vector<int32_t>& offsets) {
  std::vector<int32_t> intervals;
  for (size_t d = 0; d + 1 < offsets.size(); ++d) {
    for (int32_t row = offsets[d]; row < offsets[d + 1]; ++row) {
      intervals.insert(intervals.end(), {offsets[d], row + 1, 0, 0});
    }
  }
  return intervals;
}

TEST(RowPlan, ACausalMaskIsProvedRowByRow) {
  const std::vector<int32_t> offsets = {0, 3, 3, 7};
  const std::vector<int32_t> mask = causal(offsets);
  EXPECT_TRUE(is_causal(offsets, mask));
  EXPECT_TRUE(is_causal(std::vector<int32_t>{0}, {}));
  for (size_t i = 0; i < mask.size(); ++i) {
    if (i % 4 == 2) continue;  // Where the empty interval begins says nothing.
    std::vector<int32_t> other = mask;
    other[i] += 1;
    EXPECT_FALSE(is_causal(offsets, other)) << "number " << i;
  }
  EXPECT_FALSE(is_causal(std::vector<int32_t>{0, 4, 7}, mask));
}

TEST(RowPlan, WindowsAreCausalWhereNoDocumentIsLonger) {
  PackedSequences rows;
  rows.token_ids = {1, 2, 3, 4, 5, 6, 7};
  rows.offsets = {0, 4, 7};
  const Result<RowPlan> plan = plan_rows(rows, 10, nullptr, std::vector<int64_t>{0, 3, 4, 9});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->causal_windows, (std::set<int64_t>{0, 4, 9}));
}

}  // namespace
}  // namespace percheron
