#include "tools/top_screen.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/units.h"
#include "tools/worker_table.h"

namespace percheron {
namespace {

constexpr int kBarWidth = 20;
constexpr size_t kShortBelow = 70;  // columns
constexpr size_t kStealsShown = 6;
constexpr size_t kHomesShown = 16;
constexpr size_t kLabelWidth = 9;

std::string percent(double share) { return fmt::format("{:.0f}%", 100 * share); }

std::string count_per_second(double value) {
  return value >= 100 ? format_count(static_cast<uint64_t>(value + 0.5))
                      : fmt::format("{:.1f}", value);
}

int bar_width(size_t columns) { return columns < kShortBelow ? kBarWidth / 2 : kBarWidth; }

ScreenLine labelled(std::string_view label) {
  return ScreenLine(fmt::format("{:<{}}", label, kLabelWidth), ScreenStyle::kLabel);
}

// Broken at blanks, each line after the first indented as far as the first line's text.
void add_wrapped(std::vector<ScreenLine>& lines, std::string_view label, const std::string& text,
                 size_t width, ScreenStyle style = ScreenStyle::kPlain) {
  ScreenLine line = labelled(label);
  std::string words;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    at = end + 1;
    if (!words.empty() && kLabelWidth + words.size() + 1 + word.size() > width) {
      lines.push_back(line.add(words, style));
      line = labelled("");
      words.clear();
    }
    words += (words.empty() ? "" : " ") + word;
  }
  lines.push_back(line.add(words, style));
}

ScreenStyle style_of_state(const TopSnapshot& snapshot) {
  if (snapshot.state == "failed") return ScreenStyle::kBad;
  if (snapshot.state.starts_with("running") || snapshot.state == "done") return ScreenStyle::kGood;
  return ScreenStyle::kWarning;
}

void add_head(std::vector<ScreenLine>& lines, const TopSnapshot& snapshot, size_t width) {
  lines.push_back(labelled("run")
                      .add(snapshot.run, ScreenStyle::kTitle)
                      .add("  ")
                      .add(snapshot.state, style_of_state(snapshot)));
  if (!snapshot.message.empty()) {
    add_wrapped(lines, "", snapshot.message, width,
                snapshot.state == "failed" ? ScreenStyle::kBad : ScreenStyle::kWarning);
  }
  if (snapshot.silent_seconds > 0) {
    add_wrapped(lines, "",
                "its supervisor has said nothing for " + format_duration(snapshot.silent_seconds),
                width, ScreenStyle::kBad);
  }
}

void add_progress(std::vector<ScreenLine>& lines, const TopSnapshot& snapshot, size_t width) {
  const double done = snapshot.steps_total > 0 ? static_cast<double>(snapshot.step) /
                                                     static_cast<double>(snapshot.steps_total)
                                               : 0;
  ScreenLine step = labelled("step");
  step.add(share_bar(done, bar_width(width)), ScreenStyle::kGood);
  step.add(snapshot.steps_total > 0
               ? fmt::format(" {}/{} ({})", snapshot.step, snapshot.steps_total, percent(done))
               : std::string(" none yet"));
  if (snapshot.works && snapshot.eta_seconds > 0) {
    step.add(fmt::format(", {} left", format_duration(snapshot.eta_seconds)));
  }
  lines.push_back(step);
  if (snapshot.loss > 0) {
    std::string learning = fmt::format("loss {:.3f}, accepted length {:.2f} in training",
                                       snapshot.loss, snapshot.simulated_acceptance_length);
    if (snapshot.held_out_acceptance_length > 0) {
      learning += fmt::format(", {:.3f} held out", snapshot.held_out_acceptance_length);
    }
    add_wrapped(lines, "drafter", learning, width);
  }
  if (!snapshot.works) return;
  add_wrapped(lines, "rate",
              fmt::format("{} tokens/s; capacity of targets {}, of trainers {} samples/s",
                          count_per_second(snapshot.tokens_per_second),
                          count_per_second(snapshot.capture_samples_per_second),
                          count_per_second(snapshot.train_samples_per_second)),
              width);
  if (!snapshot.bottleneck.empty()) add_wrapped(lines, "slowest", snapshot.bottleneck, width);
}

std::string home_text(const TopSnapshot& snapshot) {
  if (snapshot.homes.empty()) return "no homes";
  std::string text;
  for (size_t i = 0; i < snapshot.homes.size(); ++i) {
    const TopHome& home = snapshot.homes[i];
    if (i == kHomesShown) {
      return text + fmt::format(", and {} more homes", snapshot.homes.size() - i);
    }
    text += fmt::format("{}home {}: {} ({})", i == 0 ? "" : ", ", home.home, home.tickets,
                        format_bytes(home.bytes));
  }
  return text;
}

void add_queues(std::vector<ScreenLine>& lines, const TopSnapshot& snapshot, size_t width) {
  if (snapshot.store_bytes_max > 0) {
    const double filled =
        static_cast<double>(snapshot.store_bytes) / static_cast<double>(snapshot.store_bytes_max);
    ScreenLine line = labelled("features");
    line.add(share_bar(filled, bar_width(width)), ScreenStyle::kGood);
    lines.push_back(line.add(fmt::format(" {} of {} ({})", format_bytes(snapshot.store_bytes),
                                         format_bytes(snapshot.store_bytes_max), percent(filled))));
  }
  add_wrapped(lines, "mailbox",
              home_text(snapshot) + fmt::format("; {} of later steps", snapshot.queued_later),
              width);
  std::string steals = format_count(static_cast<uint64_t>(snapshot.steals_total));
  for (size_t i = 0; i < snapshot.steals.size() && i < kStealsShown; ++i) {
    const auto& [pair, count] = snapshot.steals[i];
    steals += fmt::format("{} {} from {}: {}", i == 0 ? ";" : ",", pair.first, pair.second, count);
  }
  add_wrapped(lines, "steals", steals, width);
}

void add_deaths(std::vector<ScreenLine>& lines, const TopSnapshot& snapshot, size_t width) {
  if (snapshot.worker_restarts + snapshot.supervisor_restarts + snapshot.lease_expirations == 0) {
    return;
  }
  const auto times = [](int64_t count) {
    return count == 1 ? std::string("once") : fmt::format("{} times", count);
  };
  std::string text;
  const auto add = [&text](const std::string& what) { text += (text.empty() ? "" : "; ") + what; };
  if (snapshot.worker_restarts > 0) {
    add("a worker was started again " + times(snapshot.worker_restarts));
  }
  if (snapshot.supervisor_restarts > 0) {
    add("the supervisor was started again " + times(snapshot.supervisor_restarts));
  }
  if (snapshot.lease_expirations > 0) {
    add(fmt::format("{} micro-batches were handed out again", snapshot.lease_expirations));
  }
  add_wrapped(lines, "deaths", text, width, ScreenStyle::kWarning);
}

}  // namespace

std::string share_bar(double share, int width) {
  const int filled = static_cast<int>(std::lround(std::clamp(share, 0.0, 1.0) * width));
  return "[" + std::string(static_cast<size_t>(filled), '#') +
         std::string(static_cast<size_t>(width - filled), '.') + "]";
}

std::vector<ScreenLine> top_screen(const TopSnapshot& snapshot, int width, int height) {
  const auto columns = static_cast<size_t>(std::max(width, 1));
  std::vector<ScreenLine> lines, below;
  add_head(lines, snapshot, columns);
  add_progress(lines, snapshot, columns);
  if (!snapshot.homes.empty() || !snapshot.workers.empty()) add_queues(below, snapshot, columns);
  add_deaths(below, snapshot, columns);
  if (!snapshot.workers.empty()) {
    const size_t fixed = lines.size() + below.size() + 1;  // one: the table's head
    const size_t room = height <= 0                           ? snapshot.workers.size()
                        : static_cast<size_t>(height) > fixed ? static_cast<size_t>(height) - fixed
                                                              : 1;
    add_worker_table(lines, snapshot.workers, columns, room);
  }
  lines.insert(lines.end(), below.begin(), below.end());
  for (ScreenLine& line : lines) line.cut(columns);
  return lines;
}

}  // namespace percheron
