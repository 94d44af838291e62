#include "tools/top_screen.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/units.h"

namespace percheron {
namespace {

constexpr int kBarWidth = 20;
constexpr int kWideWidth = 120;  // from here on a worker's line has everything
constexpr size_t kStealsShown = 6;

std::string cut(std::string line, size_t width) {
  if (line.size() > width) line.resize(width);
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

// Names come from files and other machines: what is no printable ASCII is shown as '?'.
std::string plain(const std::string& text) {
  std::string result = text;
  std::ranges::replace_if(
      result, [](char c) { return c < ' ' || c > '~'; }, '?');
  return result;
}

std::string percent(double share) { return fmt::format("{:.0f}%", 100 * share); }

std::string bar(double share) {
  const int filled = static_cast<int>(std::lround(std::clamp(share, 0.0, 1.0) * kBarWidth));
  return "[" + std::string(static_cast<size_t>(filled), '#') +
         std::string(static_cast<size_t>(kBarWidth - filled), '.') + "]";
}

// At spaces, each line after the first indented as far as the first line's text.
void add_wrapped(std::vector<std::string>& lines, const std::string& head, const std::string& text,
                 size_t width) {
  std::string line = head;
  bool empty = true;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    at = end + 1;
    if (!empty && line.size() + 1 + word.size() > width) {
      lines.push_back(line);
      line.assign(head.size(), ' ');
      empty = true;
    }
    line += (empty ? "" : " ") + word;
    empty = false;
  }
  lines.push_back(cut(line, width));
}

std::string count_per_second(double value) {
  return value >= 100 ? format_count(static_cast<uint64_t>(value + 0.5))
                      : fmt::format("{:.1f}", value);
}

std::string worker_line(const TopWorker& worker, bool wide) {
  const std::string where = worker.node.empty() ? worker.device : worker.node + "/" + worker.device;
  std::string line = fmt::format("  {:<11} {:<{}} {:<10} {} {:>4} busy {:>4} wait",
                                 plain(worker.name), plain(where), wide ? 24 : 12,
                                 plain(worker.state), wide ? bar(worker.busy_share) : std::string(),
                                 percent(worker.busy_share), percent(worker.wait_share));
  line += fmt::format(" {:>7} smp/s", count_per_second(worker.samples_per_second));
  if (worker.power_watts >= 0) line += fmt::format(" {:>5.0f} W", worker.power_watts);
  if (worker.utilization >= 0 && wide)
    line += fmt::format(" {:>4} of gpu", percent(worker.utilization));
  return line;
}

void add_workers(std::vector<std::string>& lines, const TopSnapshot& snapshot, size_t width,
                 size_t room) {
  const size_t shown =
      snapshot.workers.size() <= room ? snapshot.workers.size() : std::max<size_t>(room, 1) - 1;
  for (size_t i = 0; i < shown; ++i) {
    lines.push_back(cut(worker_line(snapshot.workers[i], width >= kWideWidth), width));
  }
  if (shown < snapshot.workers.size()) {
    lines.push_back(fmt::format("  and {} more workers", snapshot.workers.size() - shown));
  }
}

void add_queues(std::vector<std::string>& lines, const TopSnapshot& snapshot, size_t width) {
  const double filled = snapshot.store_bytes_max > 0
                            ? static_cast<double>(snapshot.store_bytes) /
                                  static_cast<double>(snapshot.store_bytes_max)
                            : 0;
  lines.push_back(
      cut(fmt::format("features {} {} of {} ({})", bar(filled), format_bytes(snapshot.store_bytes),
                      format_bytes(snapshot.store_bytes_max), percent(filled)),
          width));
  std::string homes;
  for (const TopHome& home : snapshot.homes) {
    homes += fmt::format("{}home {}: {} ({})", homes.empty() ? "" : ", ", home.home, home.tickets,
                         format_bytes(home.bytes));
  }
  add_wrapped(lines, "mailbox  ",
              (homes.empty() ? "no homes" : homes) +
                  fmt::format("; {} of later steps", snapshot.queued_later),
              width);
  int64_t total = 0;
  for (const auto& [pair, count] : snapshot.steals) total += count;
  auto most = snapshot.steals;
  std::ranges::stable_sort(most, std::greater(), [](const auto& steal) { return steal.second; });
  std::string steals = format_count(static_cast<uint64_t>(total));
  for (size_t i = 0; i < most.size() && i < kStealsShown; ++i) {
    steals += fmt::format("{} {} from {}: {}", i == 0 ? ";" : ",", most[i].first.first,
                          most[i].first.second, most[i].second);
  }
  add_wrapped(lines, "steals   ", steals, width);
}

// What a worker did between two looks.
TopWorker worker_between(const char* role, size_t number, const WorkerActivity& now,
                         const WorkerActivity* before, double seconds) {
  TopWorker worker;
  worker.name = fmt::format("{} {}", role, number);
  worker.device = now.device;
  worker.state = occupation_name(now.now);
  const OccupationSeconds spent = before ? now.seconds - before->seconds : now.seconds;
  double busy = 0, waited = 0;
  for (size_t i = 0; i < kOccupations; ++i) {
    const auto occupation = static_cast<Occupation>(i);
    if (occupation == Occupation::kIdle) continue;
    (is_waiting(occupation) ? waited : busy) += spent[occupation];
  }
  // A job is counted when it ends, so a share may be a little above 1.
  if (seconds > 0) {
    worker.busy_share = std::min(1.0, busy / seconds);
    worker.wait_share = std::min(1.0, waited / seconds);
    worker.samples_per_second =
        static_cast<double>(now.samples - (before ? before->samples : 0)) / seconds;
  }
  return worker;
}

}  // namespace

TopSnapshot top_snapshot(const RunStatus& status, const std::string& state,
                         const RunActivitySnapshot& now, const RunActivitySnapshot* before,
                         double seconds) {
  TopSnapshot top;
  top.run = status.run;
  top.state = state;
  top.step = status.step.step;
  top.steps_total = status.step.steps_total;
  top.loss = status.step.loss;
  top.simulated_acceptance_length = status.step.simulated_acceptance_length;
  if (!status.evaluation.acceptance_length_walk.empty()) {
    top.held_out_acceptance_length = status.evaluation.acceptance_length_walk.back();
  }
  top.tokens_per_second = status.step.tokens_per_second;
  top.eta_seconds = status.step.eta_seconds;
  top.capture_samples_per_second = now.capture_samples_per_second;
  top.train_samples_per_second = now.train_samples_per_second;
  top.bottleneck = bottleneck_words(now.bottleneck, now.window);
  const auto add = [&](const char* role, const std::vector<WorkerActivity>& workers,
                       const std::vector<WorkerActivity>* old) {
    for (size_t i = 0; i < workers.size(); ++i) {
      const WorkerActivity* then = old && i < old->size() ? &(*old)[i] : nullptr;
      TopWorker worker = worker_between(role, i, workers[i], then, seconds);
      const auto health = now.devices.find(worker.device);
      if (health != now.devices.end()) {
        worker.power_watts = health->second.power_watts;
        worker.utilization = health->second.utilization;
      }
      top.workers.push_back(std::move(worker));
    }
  };
  add("target", now.targets, before ? &before->targets : nullptr);
  add("trainer", now.trainers, before ? &before->trainers : nullptr);
  for (const auto& [home, queue] : now.mailbox.homes) {
    top.homes.push_back({home, queue.tickets, queue.bytes});
  }
  top.queued_later = now.mailbox.queued_later;
  const StoreState& store = now.store;
  top.store_bytes = store.reserved_bytes + store.published_bytes + store.lingering_bytes;
  top.store_bytes_max = store.bytes_max;
  top.steals.assign(now.steals.begin(), now.steals.end());
  for (const int64_t count : now.restarts) top.restarts += count;
  for (const int64_t count : now.lease_expirations) top.lease_expirations += count;
  return top;
}

std::vector<std::string> top_screen(const TopSnapshot& snapshot, int width, int height) {
  const auto columns = static_cast<size_t>(std::max(width, kTopWidthMin));
  std::vector<std::string> above, below, workers;
  const double done = snapshot.steps_total > 0 ? static_cast<double>(snapshot.step) /
                                                     static_cast<double>(snapshot.steps_total)
                                               : 0;
  above.push_back(
      cut(fmt::format("percheron  {}  {}", plain(snapshot.run), plain(snapshot.state)), columns));
  above.push_back(
      cut(fmt::format("step     {} {}/{} ({}), {} left", bar(done), snapshot.step,
                      snapshot.steps_total, percent(done), format_duration(snapshot.eta_seconds)),
          columns));
  std::string learning = fmt::format("loss {:.3f}, accepted length {:.2f} in training",
                                     snapshot.loss, snapshot.simulated_acceptance_length);
  if (snapshot.held_out_acceptance_length > 0) {
    learning += fmt::format(", {:.3f} held out", snapshot.held_out_acceptance_length);
  }
  add_wrapped(above, "drafter  ", learning, columns);
  add_wrapped(above, "rate     ",
              fmt::format("{} tokens/s; capacity of targets {}, of trainers {} samples/s",
                          count_per_second(snapshot.tokens_per_second),
                          count_per_second(snapshot.capture_samples_per_second),
                          count_per_second(snapshot.train_samples_per_second)),
              columns);
  add_wrapped(above, "slowest  ", plain(snapshot.bottleneck), columns);
  add_queues(below, snapshot, columns);
  if (snapshot.restarts > 0 || snapshot.lease_expirations > 0) {
    below.push_back(cut(fmt::format("deaths   {} workers were started again, {} leases ran out",
                                    snapshot.restarts, snapshot.lease_expirations),
                        columns));
  }
  const size_t fixed = above.size() + below.size() + 1;
  const size_t room = height <= 0                           ? snapshot.workers.size()
                      : static_cast<size_t>(height) > fixed ? static_cast<size_t>(height) - fixed
                                                            : 1;
  workers.push_back(cut(fmt::format("workers  {}", snapshot.workers.size()), columns));
  add_workers(workers, snapshot, columns, room);
  for (const auto* part : {&workers, &below}) above.insert(above.end(), part->begin(), part->end());
  return above;
}

}  // namespace percheron
