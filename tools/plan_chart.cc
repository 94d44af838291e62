#include "tools/plan_chart.h"

#include <fmt/format.h>

#include <string>

namespace percheron {
namespace {

constexpr size_t kParts = 50;  // points of a curve, so that each stands for 2 % of the epoch

std::vector<std::pair<double, double>> along_the_epoch(std::span<const double> values,
                                                       double factor) {
  std::vector<std::pair<double, double>> points;
  for (size_t i = 0; i < values.size(); ++i) {
    const double middle = (static_cast<double>(i) + 0.5) / static_cast<double>(values.size());
    points.emplace_back(100 * middle, factor * values[i]);
  }
  return points;
}

constexpr const char* kEpochLabel = "% of the epoch";

}  // namespace

std::vector<LineChart> batch_order_charts(std::span<const int64_t> counts, uint64_t seed) {
  std::vector<LineChart> charts;
  for (const BatchOrder order : kBatchOrders) {
    LineChart chart;
    chart.title = fmt::format("Buckets along the epoch: {}", batch_order_name(order));
    chart.x_label = kEpochLabel;
    chart.y_label = "% of the batches";
    chart.from_zero = true;
    const auto shares = bucket_shares(counts, order, seed, kParts);
    for (size_t bucket = 0; bucket < shares.size(); ++bucket)
      chart.series.push_back(
          {fmt::format("bucket {}", bucket + 1), along_the_epoch(shares[bucket], 100)});
    charts.push_back(std::move(chart));
  }
  return charts;
}

LineChart length_chart(const SampleSelection& selection, const PlanOptions& options) {
  LineChart chart;
  chart.title = "Mean length of the samples along the epoch";
  chart.x_label = kEpochLabel;
  chart.y_label = "tokens";
  chart.from_zero = true;
  const std::vector<int32_t> lengths = lengths_by_position(selection);
  for (const EpochOrder order : kEpochOrders) {
    PlanOptions ordered = options;
    ordered.order = order;
    const EpochPlan plan = EpochPlan::make(selection, ordered, 0);
    chart.series.push_back({std::string(epoch_order_name(order)),
                            along_the_epoch(mean_lengths(plan, lengths, kParts), 1)});
  }
  return chart;
}

}  // namespace percheron
