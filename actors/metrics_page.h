#pragma once

#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/policy/duration_histogram.h"

namespace percheron {

enum class MetricKind { kCounter, kGauge, kHistogram };

/// A metric as docs/monitoring.md describes it. Names and units are what dashboards and alert rules
/// are written for: they are added to, never changed.
struct MetricInfo {
  std::string_view name;
  MetricKind kind;
  std::string_view labels;  // beside `run`; "role, rank"
  std::string_view help;    // without a full stop
};

/// Every metric, in the order of the page.
std::span<const MetricInfo> metric_table();

/// Numbers beyond this have the label "other", so that labels stay few whatever is placed.
inline constexpr int kRankLabelsMax = 64;
/// As above, of a thief and its victim: they come in pairs.
inline constexpr int kStealLabelsMax = 16;
std::string rank_label(int number, int labels_max = kRankLabelsMax);

/// One answer to a scrape: values of metrics of the table, of any number of runs, as the Prometheus
/// text format.
class MetricsPage {
 public:
  using Labels = std::vector<std::pair<std::string_view, std::string>>;

  /// Adds a value; several with equal labels are summed.
  void add(std::string_view metric, const Labels& labels, double value);
  void add(std::string_view metric, const Labels& labels, const DurationHistogram& histogram);

  /// Families in the table's order, those without a value left out.
  std::string text() const;
  static constexpr std::string_view kContentType = "text/plain; version=0.0.4; charset=utf-8";

 private:
  struct Family {
    std::map<Labels, double> values;
    std::map<Labels, DurationHistogram> histograms;
  };
  std::map<std::string_view, Family> families_;  // by names of the table
};

}  // namespace percheron
