#pragma once

#include <string>
#include <utility>
#include <vector>

namespace percheron {

/// A named curve of a chart.
struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x ascending
};

/// A horizontal mark across the chart, such as a baseline.
struct Mark {
  std::string name;
  double value = 0;
};

struct LineChart {
  std::string title;
  std::string x_label, y_label;
  std::vector<Series> series;
  std::vector<Mark> marks;
  bool from_zero = false;  // the y axis begins at 0
};

inline constexpr int kLineChartWidth = 640, kLineChartHeight = 300;
/// Series beyond these repeat the colours.
inline constexpr int kLineChartColours = 8;

/// What the chart's SVG element holds, without title and legend; empty for a chart without points.
std::string line_chart_body(const LineChart& chart);

/// The chart as inline SVG, 640 wide; colours come from the page's CSS classes series-0 ...
/// series-7 and mark. Points that are not finite are left out; a chart without points says so.
std::string line_chart_svg(const LineChart& chart);

/// Replaces &, <, >, " by entities.
std::string escape_html(const std::string& text);

}  // namespace percheron
