#include "actors/metrics_page.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace percheron {
namespace {

const MetricInfo& info_of(std::string_view metric) {
  const auto found = std::ranges::find(metric_table(), metric, &MetricInfo::name);
  PERCHERON_CHECK(found != metric_table().end(), "a metric is in the table");
  return *found;
}

prometheus::MetricType type_of(MetricKind kind) {
  switch (kind) {
    case MetricKind::kCounter: return prometheus::MetricType::Counter;
    case MetricKind::kGauge: return prometheus::MetricType::Gauge;
    case MetricKind::kHistogram: return prometheus::MetricType::Histogram;
  }
  return prometheus::MetricType::Untyped;
}

prometheus::ClientMetric labelled(const MetricsPage::Labels& labels) {
  prometheus::ClientMetric metric;
  for (const auto& [name, value] : labels) metric.label.push_back({std::string(name), value});
  return metric;
}

prometheus::ClientMetric::Histogram as_prometheus(const DurationHistogram& histogram) {
  prometheus::ClientMetric::Histogram result;
  for (size_t i = 0; i < histogram.counts.size(); ++i) {
    result.sample_count += static_cast<uint64_t>(histogram.counts[i]);
    const double bound = i < DurationHistogram::kBounds.size()
                             ? DurationHistogram::kBounds[i]
                             : std::numeric_limits<double>::infinity();
    result.bucket.push_back({result.sample_count, bound});
  }
  result.sample_sum = histogram.sum;
  return result;
}

}  // namespace

std::string rank_label(int number, int labels_max) {
  return number < labels_max ? std::to_string(number) : "other";
}

void MetricsPage::add(std::string_view metric, const Labels& labels, double value) {
  const MetricInfo& info = info_of(metric);
  PERCHERON_CHECK(info.kind != MetricKind::kHistogram, "a histogram has more than one value");
  families_[info.name].values[labels] += value;
}

void MetricsPage::add(std::string_view metric, const Labels& labels,
                      const DurationHistogram& histogram) {
  const MetricInfo& info = info_of(metric);
  PERCHERON_CHECK(info.kind == MetricKind::kHistogram, "only histograms have buckets");
  families_[info.name].histograms[labels] = histogram;
}

std::string MetricsPage::text() const {
  std::vector<prometheus::MetricFamily> families;
  for (const MetricInfo& info : metric_table()) {
    const auto found = families_.find(info.name);
    if (found == families_.end()) continue;
    prometheus::MetricFamily family{
        std::string(info.name), std::string(info.help), type_of(info.kind), {}};
    for (const auto& [labels, value] : found->second.values) {
      prometheus::ClientMetric metric = labelled(labels);
      metric.counter.value = metric.gauge.value = value;
      family.metric.push_back(std::move(metric));
    }
    for (const auto& [labels, histogram] : found->second.histograms) {
      prometheus::ClientMetric metric = labelled(labels);
      metric.histogram = as_prometheus(histogram);
      family.metric.push_back(std::move(metric));
    }
    families.push_back(std::move(family));
  }
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace percheron
