#include "tools/worker_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>

#include "base/units.h"

namespace percheron {
namespace {

constexpr size_t kNameWidth = 12;
constexpr size_t kWhereMin = 8, kWhereMax = 32;
constexpr int kBarWidth = 18;

std::string percent(double share) { return fmt::format("{:.0f}%", 100 * share); }

ScreenStyle style_of(const TopWorker& worker) {
  if (worker.state == "compute" || worker.state == "reduce" || worker.state == "update") {
    return ScreenStyle::kGood;
  }
  if (worker.state == "lost") return ScreenStyle::kBad;
  return worker.state == "idle" ? ScreenStyle::kFaint : ScreenStyle::kWarning;
}

std::string where(const TopWorker& worker) {
  return worker.node.empty() ? worker.device : worker.node + "/" + worker.device;
}

// The device is told by its end, so a long name loses its beginning.
std::string keep_end(const std::string& text, size_t width) {
  return text.size() <= width ? text : "~" + text.substr(text.size() - width + 1);
}

struct Column {
  const char* title;
  size_t width;
  int importance;  // 0: always there
  bool right;      // aligned
  bool by_state;   // coloured
  std::function<std::string(const TopWorker&)> cell;
};

std::vector<Column> columns_for(const std::vector<TopWorker>& workers, size_t width) {
  size_t where_width = kWhereMin;
  bool power = false, utilization = false;
  for (const TopWorker& worker : workers) {
    where_width = std::clamp(where(worker).size(), where_width, kWhereMax);
    power = power || worker.power_watts >= 0;
    utilization = utilization || worker.utilization >= 0;
  }
  std::vector<Column> columns = {
      {"", kNameWidth, 0, false, false, [](const TopWorker& w) { return w.name; }},
      {"where", where_width, 3, false, false,
       [where_width](const TopWorker& w) { return keep_end(where(w), where_width); }},
      {"doing", 10, 0, false, true, [](const TopWorker& w) { return w.state; }},
      {"", kBarWidth + 2, 8, false, true,
       [](const TopWorker& w) { return share_bar(w.busy_share, kBarWidth); }},
      {"busy", 4, 1, true, false, [](const TopWorker& w) { return percent(w.busy_share); }},
      {"waits", 5, 2, true, false, [](const TopWorker& w) { return percent(w.wait_share); }},
      {"samples/s", 9, 4, true, false, [](const TopWorker& w) {
         return w.samples_per_second >= 1000
                    ? format_count(static_cast<uint64_t>(w.samples_per_second + 0.5))
                    : fmt::format("{:.1f}", w.samples_per_second);
       }}};
  if (power) {
    columns.push_back({"power", 6, 5, true, false, [](const TopWorker& w) {
                         return w.power_watts >= 0 ? fmt::format("{:.0f} W", w.power_watts) : "-";
                       }});
  }
  if (utilization) {
    columns.push_back({"gpu", 4, 6, true, false, [](const TopWorker& w) {
                         return w.utilization >= 0 ? percent(w.utilization) : "-";
                       }});
  }
  const auto total = [&columns] {
    size_t sum = 0;
    for (const Column& column : columns) sum += column.width + 1;
    return sum;
  };
  while (total() > width) {
    const auto least = std::ranges::max_element(columns, {}, &Column::importance);
    if (least->importance == 0) break;
    columns.erase(least);
  }
  return columns;
}

std::string cell(const Column& column, const std::string& text) {
  return column.right ? fmt::format(" {:>{}}", text, column.width)
                      : fmt::format(" {:<{}}", text, column.width);
}

}  // namespace

void add_worker_table(std::vector<ScreenLine>& lines, const std::vector<TopWorker>& workers,
                      size_t width, size_t room) {
  const std::vector<Column> columns = columns_for(workers, width);
  std::string head;
  for (const Column& column : columns) head += cell(column, column.title);
  const std::string count = fmt::format("workers  {}", workers.size());
  head.replace(0, std::min(head.size(), count.size()), count);
  lines.emplace_back(head, ScreenStyle::kLabel);
  const size_t shown = workers.size() <= room ? workers.size() : std::max<size_t>(room, 1) - 1;
  for (size_t i = 0; i < shown; ++i) {
    ScreenLine line;
    for (const Column& column : columns) {
      line.add(cell(column, column.cell(workers[i])),
               column.by_state ? style_of(workers[i]) : ScreenStyle::kPlain);
    }
    lines.push_back(std::move(line));
  }
  if (shown < workers.size()) {
    lines.emplace_back(fmt::format(" and {} more workers", workers.size() - shown),
                       ScreenStyle::kFaint);
  }
}

}  // namespace percheron
