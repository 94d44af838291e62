#include "tools/line_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace percheron {
namespace {

constexpr double kWidth = kLineChartWidth, kHeight = kLineChartHeight;
constexpr double kLeft = 58, kRight = 14, kTop = 14, kBottom = 40;
constexpr int kColours = kLineChartColours;

struct Range {
  double low = std::numeric_limits<double>::infinity(),
         high = -std::numeric_limits<double>::infinity();
  void include(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
};

/// A round step (1, 2 or 5 times a power of ten) that cuts the range into four to nine parts.
double tick_step(double span) {
  const double rough = span / 5;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  const double share = rough / power;
  return power * (share < 1.5 ? 1 : share < 3.5 ? 2 : share < 7.5 ? 5 : 10);
}

std::string tick_text(double value, double step) {
  if (std::abs(value) >= 10000) return fmt::format("{:.0f}k", value / 1000);
  const int digits = step >= 1 ? 0 : static_cast<int>(std::ceil(-std::log10(step) - 1e-9));
  return fmt::format("{:.{}f}", value, digits);
}

/// Maps data to pixels.
class Axes {
 public:
  Axes(Range x, Range y) : x_(x), y_(y) {
    if (x_.high == x_.low) x_.high = x_.low + 1;
    const double span = y_.high > y_.low ? y_.high - y_.low : std::max(1.0, std::abs(y_.high));
    step_ = tick_step(span);
    y_.low = std::floor(y_.low / step_) * step_;
    y_.high = std::ceil(y_.high / step_ + (y_.high == y_.low ? 1 : 0)) * step_;
  }
  double px(double x) const {
    return kLeft + (x - x_.low) / (x_.high - x_.low) * (kWidth - kLeft - kRight);
  }
  double py(double y) const {
    return kHeight - kBottom - (y - y_.low) / (y_.high - y_.low) * (kHeight - kTop - kBottom);
  }

  std::string grid() const {
    std::string out;
    for (double y = y_.low; y <= y_.high + step_ / 2; y += step_) {
      out += fmt::format("<line class='grid' x1='{}' x2='{}' y1='{:.1f}' y2='{:.1f}'/>", kLeft,
                         kWidth - kRight, py(y), py(y));
      out += fmt::format("<text class='tick' x='{}' y='{:.1f}' text-anchor='end'>{}</text>",
                         kLeft - 6, py(y) + 4, tick_text(y, step_));
    }
    const double step = tick_step(x_.high - x_.low);
    for (double x = std::ceil(x_.low / step) * step; x <= x_.high + step / 1e6; x += step) {
      out += fmt::format("<text class='tick' x='{:.1f}' y='{}' text-anchor='middle'>{}</text>",
                         px(x), kHeight - kBottom + 17, tick_text(x, step));
    }
    return out;
  }

 private:
  Range x_, y_;
  double step_ = 1;
};

std::string curve(const Series& series, const Axes& axes, int colour) {
  std::string points;
  size_t count = 0;
  for (const auto& [x, y] : series.points) {
    if (!std::isfinite(y)) continue;
    points += fmt::format("{:.1f},{:.1f} ", axes.px(x), axes.py(y));
    ++count;
  }
  std::string out = fmt::format("<polyline class='series series-{}' points='{}'/>", colour, points);
  if (count > 30) return out;
  for (const auto& [x, y] : series.points) {  // Few points are shown as points.
    if (!std::isfinite(y)) continue;
    out += fmt::format(
        "<circle class='dot series-{}' cx='{:.1f}' cy='{:.1f}' r='3'><title>{}: "
        "{:.4g}</title></circle>",
        colour, axes.px(x), axes.py(y), escape_html(series.name), y);
  }
  return out;
}

std::string legend(const LineChart& chart) {
  std::string out = "<div class='legend'>";
  for (size_t i = 0; i < chart.series.size(); ++i) {
    out += fmt::format("<span><i class='key series-{}'></i>{}</span>", i % kColours,
                       escape_html(chart.series[i].name));
  }
  for (const Mark& mark : chart.marks) {
    out += fmt::format("<span><i class='key mark'></i>{} {:.2f}</span>", escape_html(mark.name),
                       mark.value);
  }
  return out + "</div>";
}

}  // namespace

std::string escape_html(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string line_chart_body(const LineChart& chart) {
  Range x, y;
  for (const Series& series : chart.series) {
    for (const auto& [px, py] : series.points) {
      if (!std::isfinite(py)) continue;
      x.include(px);
      y.include(py);
    }
  }
  if (x.empty()) return {};
  for (const Mark& mark : chart.marks) y.include(mark.value);
  if (chart.from_zero) y.include(0);
  const Axes axes(x, y);
  std::string out = axes.grid();
  for (const Mark& mark : chart.marks) {
    out += fmt::format("<line class='mark' x1='{}' x2='{}' y1='{:.1f}' y2='{:.1f}'/>", kLeft,
                       kWidth - kRight, axes.py(mark.value), axes.py(mark.value));
  }
  for (size_t i = 0; i < chart.series.size(); ++i)
    out += curve(chart.series[i], axes, static_cast<int>(i % kColours));
  out += fmt::format("<text class='label' x='{:.0f}' y='{}' text-anchor='middle'>{}</text>",
                     (kLeft + kWidth - kRight) / 2, kHeight - 6, escape_html(chart.x_label));
  out += fmt::format(
      "<text class='label' transform='rotate(-90)' x='{:.0f}' y='14' "
      "text-anchor='middle'>{}</text>",
      -(kHeight - kBottom + kTop) / 2, escape_html(chart.y_label));
  return out;
}

std::string line_chart_svg(const LineChart& chart) {
  std::string out = fmt::format("<figure><figcaption>{}</figcaption>", escape_html(chart.title));
  const std::string body = line_chart_body(chart);
  if (body.empty()) return out + "<p class='empty'>no data</p></figure>";
  out += fmt::format("<svg viewBox='0 0 {} {}' role='img' aria-label='{}'>", kLineChartWidth,
                     kLineChartHeight, escape_html(chart.title));
  return out + body + "</svg>" + legend(chart) + "</figure>";
}

}  // namespace percheron
