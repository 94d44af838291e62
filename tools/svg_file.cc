#include "tools/svg_file.h"

#include <fmt/format.h>

#include <string_view>

namespace percheron {
namespace {

constexpr int kTitleHeight = 34, kLegendHeight = 22, kGap = 14, kMargin = 10;
constexpr int kChartHeight = kTitleHeight + kLineChartHeight + kLegendHeight + kGap;

constexpr std::string_view kStyle = R"css(
text { font-family: system-ui, "DejaVu Sans", sans-serif; fill: #1d2433; } .page { fill: #ffffff; }
.title { font-size: 15px; font-weight: 600; } .grid { stroke: #dfe3ea; }
.tick, .label, .key { font-size: 12px; fill: #5b6478; } .series { fill: none; stroke-width: 2; stroke-linejoin: round; }
.dot { stroke: none; } line.mark { stroke: #5b6478; stroke-dasharray: 5 4; }
polyline.series-0, line.series-0 { stroke: #2563eb; } circle.series-0 { fill: #2563eb; }
polyline.series-1, line.series-1 { stroke: #d9480f; } circle.series-1 { fill: #d9480f; }
polyline.series-2, line.series-2 { stroke: #2b8a3e; } circle.series-2 { fill: #2b8a3e; }
polyline.series-3, line.series-3 { stroke: #9c36b5; } circle.series-3 { fill: #9c36b5; }
polyline.series-4, line.series-4 { stroke: #0b7285; } circle.series-4 { fill: #0b7285; }
polyline.series-5, line.series-5 { stroke: #c2255c; } circle.series-5 { fill: #c2255c; }
polyline.series-6, line.series-6 { stroke: #5f3dc4; } circle.series-6 { fill: #5f3dc4; }
polyline.series-7, line.series-7 { stroke: #846358; } circle.series-7 { fill: #846358; }
@media (prefers-color-scheme: dark) { text { fill: #e6e9f0; } .page { fill: #12161f; } .grid { stroke: #2c3444; }
.tick, .label, .key { fill: #9aa4b8; } line.mark { stroke: #9aa4b8; } }
)css";

// A stroke and a name for each series and mark, in columns of equal width.
std::string legend(const LineChart& chart) {
  const size_t entries = chart.series.size() + chart.marks.size();
  if (entries == 0) return {};
  const double width = static_cast<double>(kLineChartWidth - 40) / static_cast<double>(entries);
  std::string out;
  for (size_t i = 0; i < entries; ++i) {
    const bool is_series = i < chart.series.size();
    const double x = 40 + width * static_cast<double>(i);
    out += fmt::format(
        "<line class='{}' x1='{:.0f}' x2='{:.0f}' y1='-4' y2='-4' "
        "stroke-width='3'/>",
        is_series ? fmt::format("series-{}", i % kLineChartColours) : "mark", x, x + 16);
    out += fmt::format(
        "<text class='key' x='{:.0f}' y='0'>{}</text>", x + 21,
        escape_html(is_series ? chart.series[i].name : chart.marks[i - chart.series.size()].name));
  }
  return out;
}

}  // namespace

std::string svg_file(std::span<const LineChart> charts) {
  const int width = kLineChartWidth + 2 * kMargin;
  const int height = static_cast<int>(charts.size()) * kChartHeight + kMargin;
  std::string out = fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' width='{0}' height='{1}' viewBox='0 0 {0} {1}'>\n"
      "<style>{2}</style>\n<rect class='page' width='{0}' height='{1}'/>\n",
      width, height, kStyle);
  int y = 0;
  for (const LineChart& chart : charts) {
    out += fmt::format(
        "<g transform='translate({} {})'>\n<text class='title' x='10' y='24'>{}</text>\n", kMargin,
        y, escape_html(chart.title));
    const std::string body = line_chart_body(chart);
    out += fmt::format(
        "<g transform='translate(0 {})'>{}</g>\n<g transform='translate(0 {})'>{}</g>\n</g>\n",
        kTitleHeight, body.empty() ? "<text class='label' x='40' y='40'>no data</text>" : body,
        kTitleHeight + kLineChartHeight + kLegendHeight - 6, legend(chart));
    y += kChartHeight;
  }
  return out + "</svg>\n";
}

}  // namespace percheron
