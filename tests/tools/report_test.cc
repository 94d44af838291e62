#include "tools/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tools/evaluation.h"
#include "tools/line_chart.h"

namespace percheron {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(LineChart, LeavesOutWhatIsNotFiniteAndEscapesNames) {
  LineChart chart{"a < b",          "x",  "y", {{"<loss>", {{0, 1}, {1, NAN}, {2, 3}}}},
                  {{"floor", 1.5}}, false};
  const std::string svg = line_chart_svg(chart);
  EXPECT_THAT(svg, AllOf(HasSubstr("a &lt; b"), HasSubstr("&lt;loss&gt;"), HasSubstr("floor 1.50"),
                         Not(HasSubstr("nan")), Not(HasSubstr("<loss>"))));
}

TEST(LineChart, WithoutPointsItSaysSo) {
  EXPECT_THAT(line_chart_svg({"empty", "x", "y", {{"s", {}}}, {}, false}), HasSubstr("no data"));
}

TEST(LineChart, AConstantCurveIsDrawn) {
  EXPECT_THAT(line_chart_svg({"flat", "x", "y", {{"s", {{1, 5}, {2, 5}}}}, {}, false}),
              HasSubstr("polyline"));
}

TEST(Report, ColoursAcceptedTokensAndNeedsNothingFromOutside) {
  ReportData data;
  data.title = "EAGLE-3 drafter";
  data.figures = {{"acceptance_length", 1.6}, {"steps", 10}, {"seconds", 3.0}};
  data.prompts.push_back(
      {"Why <so>?",
       {{"Be", ShownPiece::Origin::kTarget}, {"cause & so", ShownPiece::Origin::kAccepted}},
       1.5});
  const std::string page = report_html(data, MetricsHistory());
  EXPECT_THAT(
      page, AllOf(HasSubstr("1.600"), HasSubstr("<span class='accepted'>cause &amp; so</span>"),
                  HasSubstr("Why &lt;so&gt;?"), Not(HasSubstr("http")), Not(HasSubstr("<script"))));
}

TEST(Evaluation, AnAnswerLoopsIfAnEightGramComesThreeTimes) {
  std::vector<int32_t> tokens;
  for (int repeat = 0; repeat < 3; ++repeat) {
    for (int32_t t = 0; t < 8; ++t) tokens.push_back(t);
    EXPECT_EQ(answer_loops(tokens), repeat == 2);
    tokens.push_back(100 + repeat);
  }
}

}  // namespace
}  // namespace percheron
