#include "tools/plan_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/data/stand_in.h"
#include "tools/bucket_report.h"
#include "tools/plan_chart.h"
#include "tools/svg_file.h"

namespace percheron {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

PlanReport counts_report(const std::vector<int64_t>& counts) {
  PlanReport report;
  report.seeds = {42, 3};
  report.counts = counts;
  for (const BatchOrder order : kBatchOrders) {
    auto simulation = simulate_batch_order(counts, order, report.seeds);
    EXPECT_TRUE(simulation.ok()) << simulation.status().message();
    report.batch_orders.push_back(*std::move(simulation));
  }
  return report;
}

TEST(PlanReport, StandsBesideThePublishedInterleaving) {
  const std::string text = plan_report(counts_report(kPublishedCounts));
  EXPECT_THAT(text, AllOf(HasSubstr("46,691 batches of 6 buckets, 3 seeds"), HasSubstr("41.94"),
                          HasSubstr("never twice"), HasSubstr("39,126, 3,391, 261")));
  EXPECT_THAT(plan_report(counts_report({5, 9})), Not(HasSubstr("published")));
}

TEST(PlanReport, SaysTheSameToPrograms) {
  const nlohmann::ordered_json json = plan_json(counts_report(kPublishedCounts));
  EXPECT_EQ(json["counts"], kPublishedCounts);
  const auto& interleaved = json["batch_orders"][0];
  EXPECT_EQ(interleaved["order"], "interleaved");
  EXPECT_EQ(interleaved["batches"], 46691);
  EXPECT_NEAR(interleaved["runs"]["1"]["mean"].get<double>(), 39126, 400);
  EXPECT_EQ(interleaved["quartile_shares"].size(), 6u);
  int64_t seeds = 0;
  for (const auto& [length, count] : interleaved["longest_runs"].items())
    seeds += count.get<int64_t>();
  EXPECT_EQ(seeds, 3);
}

TEST(PlanReport, CountsLongRunsTogether) {
  const nlohmann::ordered_json never_twice =
      plan_json(counts_report({10, 5000}))["batch_orders"][2];
  EXPECT_EQ(never_twice["runs"]["64_and_more"]["mean"], 1);
  EXPECT_LE(never_twice["runs"].size(), 64u);
  EXPECT_GT(std::stoi(never_twice["longest_runs"].begin().key()), 4000);
}

TEST(PlanReport, CountsTheTokensOfABatchThatIsNotFull) {
  PlanReport report;
  const auto selection = select_samples(std::vector<int32_t>{40, 60, 50}, report.options);
  report.packing = packing_arithmetic(*selection, report.options, 8);
  EXPECT_EQ(report.packing->batches_of_samples, 1);
  EXPECT_EQ(report.packing->tokens_of_samples, 150);
  EXPECT_THAT(plan_report(report), HasSubstr("1 batch     150 tokens, of all samples"));
  report.packing = packing_arithmetic(*selection, report.options, 3);
  EXPECT_THAT(plan_report(report), HasSubstr("1 batch     a full one has 150 tokens on average"));
}

TEST(PlanReport, ShowsPackingAndOrdersOfLengths) {
  PlanReport report;
  report.seeds = {1, 1};
  report.options.token_budget = 100;
  const auto selection = select_samples(std::vector<int32_t>{40, 60, 50, 50}, report.options);
  report.packing = packing_arithmetic(*selection, report.options, 3);
  report.orders.push_back(simulate_epoch_order(*selection, report.options, 1, report.seeds));
  const std::string text = plan_report(report);
  EXPECT_THAT(text, AllOf(HasSubstr("4 samples, 200 tokens, 50.0 on average"),
                          HasSubstr("a full one has 150 tokens on average"),
                          HasSubstr("packed to 100 tokens")));
  EXPECT_EQ(plan_json(report)["packing"]["batches_of_samples"], 2);
}

TEST(PlanReport, ColumnsStandApartWhereSeedsDiffer) {
  PlanReport report;
  report.options.order = EpochOrder::kShuffled;
  report.options.token_budget = 1024;
  report.seeds = {42, 5};
  const auto selection = select_samples(
      std::vector<int32_t>{136, 93, 239, 240, 241, 239, 150, 241, 251, 238, 190, 242},
      report.options);
  report.orders.push_back(simulate_epoch_order(*selection, report.options, 1, report.seeds));
  ASSERT_GE(report.orders[0].met_again.least(), 0.1);  // five characters, the widest
  EXPECT_THAT(plan_report(report),
              testing::ContainsRegex("  4\\.0  +[0-9.]+ % \\([0-9.]+ - [0-9.]+\\)"));
}

TEST(BucketReport, StandsBesideThePublishedFigures) {
  const auto comparison =
      compare_buckets(stand_in_lengths(), BatchLimits{49152, 64}, 6, {1000, 8192}, 42);
  ASSERT_TRUE(comparison.ok()) << comparison.status().message();
  const std::string text = bucket_report(*comparison);
  EXPECT_THAT(text, AllOf(HasSubstr("902,087 samples"), HasSubstr("770 1216 1728 2432 3296 8192"),
                          HasSubstr("86.8 %"), HasSubstr("77.4 %"), HasSubstr("1000 8192")));
  const nlohmann::ordered_json json = bucket_json(*comparison);
  ASSERT_EQ(json["bounds"].size(), 6u);
  const auto& best = json["bounds"][0];
  for (const auto& other : json["bounds"]) {
    EXPECT_LE(other["efficiency_expected_maximum"].get<double>(),
              best["efficiency_expected_maximum"].get<double>())
        << other["name"];
    EXPECT_LE(other["efficiency_upper_bound"].get<double>(),
              json["bounds"][1]["efficiency_upper_bound"].get<double>())
        << other["name"];
    // The model foresees what the epoch gives, unless a bucket is very wide.
    if (other["name"] == "given") continue;
    EXPECT_NEAR(other["efficiency_expected_maximum"].get<double>(),
                other["efficiency_planned"].get<double>(), 0.03)
        << other["name"];
  }
}

TEST(BucketReport, RefusesWhatCanNotBe) {
  const std::vector<int32_t> lengths = {10, 90};
  const auto error = [&](const BatchLimits& limits, int64_t buckets, const BucketBounds& given) {
    const auto comparison = compare_buckets(lengths, limits, buckets, given, 1);
    EXPECT_FALSE(comparison.ok());
    return comparison.status().message();
  };
  EXPECT_THAT(error({89, 4}, 6, {}), HasSubstr("token budget is 89"));
  EXPECT_THAT(error({90, 4}, 0, {}), HasSubstr("0 buckets"));
  EXPECT_THAT(error({90, 4}, 2, {50, 80}), HasSubstr("last bound is 80"));
}

TEST(SvgFile, HoldsEveryChartWithTitleAndLegend) {
  const std::string svg = svg_file(batch_order_charts(kPublishedCounts, 42));
  EXPECT_THAT(svg, AllOf(testing::StartsWith("<svg xmlns="), testing::EndsWith("</svg>\n"),
                         HasSubstr("interleaved"), HasSubstr("weighted random"),
                         HasSubstr("bucket 6"), HasSubstr("polyline")));
  EXPECT_THAT(svg_file(std::vector<LineChart>(1)), HasSubstr("no data"));
}

}  // namespace
}  // namespace percheron
