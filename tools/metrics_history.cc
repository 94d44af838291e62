#include "tools/metrics_history.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace percheron {

Result<MetricsHistory> MetricsHistory::read(FileSystem& files, const std::string& path) {
  PERCHERON_ASSIGN_OR_RETURN(const std::string text, files.read_text(path));
  MetricsHistory history;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const auto line =
        nlohmann::json::parse(text.substr(begin, end - begin), nullptr, /*allow_exceptions=*/false);
    begin = end + 1;
    if (!line.is_object() || !line.contains("step") || !line["step"].is_number_integer()) continue;
    const int64_t step = line["step"].get<int64_t>();
    for (const auto& [name, value] : line.items()) {
      if (value.is_number() && name.find('/') != std::string::npos)
        history.values_[name][step] = value.get<double>();
    }
  }
  return history;
}

Series MetricsHistory::series(const std::string& metric, const std::string& shown_as) const {
  Series series{shown_as, {}};
  if (const auto found = values_.find(metric); found != values_.end()) {
    for (const auto& [step, value] : found->second)
      series.points.emplace_back(static_cast<double>(step), value);
  }
  return series;
}

std::vector<std::string> MetricsHistory::names(const std::string& prefix) const {
  std::vector<std::string> names;
  for (const auto& [name, values] : values_) {
    if (name.starts_with(prefix)) names.push_back(name);
  }
  return names;
}

Series smoothed(Series series, size_t window) {
  std::vector<std::pair<double, double>> points;
  double sum = 0;
  for (size_t i = 0; i < series.points.size(); ++i) {
    sum += series.points[i].second;
    if (i >= window) sum -= series.points[i - window].second;
    points.emplace_back(series.points[i].first, sum / static_cast<double>(std::min(i + 1, window)));
  }
  series.points = std::move(points);
  return series;
}

}  // namespace percheron
