#include "tools/capture_line.h"

#include <fmt/format.h>

#include <utility>

#include "base/units.h"

namespace percheron {
namespace {

constexpr int64_t kTerminalIntervalNs = 200'000'000;
constexpr int64_t kPlainIntervalNs = 10'000'000'000;

std::string count(int64_t n) { return format_count(static_cast<uint64_t>(n)); }

}  // namespace

std::string format_capture(const CaptureProgress& progress) {
  const double share = progress.samples_total > 0 ? static_cast<double>(progress.samples) /
                                                        static_cast<double>(progress.samples_total)
                                                  : 1;
  return fmt::format(
      "{} of {} samples ({:.0f}%) | {} written | {} tok/s{} | eta {}", count(progress.samples),
      count(progress.samples_total), 100 * share, format_bytes(progress.bytes),
      count(static_cast<int64_t>(progress.tokens_per_second + 0.5)),
      progress.not_finite > 0 ? fmt::format(" | {} not finite", count(progress.not_finite)) : "",
      format_duration(progress.eta_seconds));
}

std::string format_capture_end(const CaptureSummary& summary) {
  std::string text = fmt::format("{} samples captured in {} ({}); {} were there already",
                                 count(summary.captured), format_duration(summary.seconds),
                                 format_bytes(summary.bytes), count(summary.found));
  if (summary.remade > 0) {
    text += fmt::format("; {} had damaged files", count(summary.remade));
  }
  if (summary.not_finite > 0) {
    text += fmt::format("; {} are left out: a state is not finite", count(summary.not_finite));
  }
  return text;
}

void CaptureLine::on_progress(const CaptureProgress& progress) {
  const bool terminal = style_ == ProgressLine::Style::kTerminal;
  const int64_t now = clock_.monotonic_ns();
  const int64_t interval = terminal ? kTerminalIntervalNs : kPlainIntervalNs;
  const bool last = progress.samples + progress.not_finite >= progress.samples_total;
  if (shown_ && !last && now - last_ns_ < interval) return;
  std::string line = format_capture(progress);
  if (line == line_) return;
  shown_ = true;
  last_ns_ = now;
  line_ = std::move(line);
  out_.write(terminal ? "\r\033[K" + line_ : line_ + "\n");
}

void CaptureLine::on_event(const std::string& text) {
  if (style_ == ProgressLine::Style::kTerminal) {
    out_.write(fmt::format("\r\033[K{}\n{}", text, line_));
  } else {
    out_.write(text + "\n");
  }
}

}  // namespace percheron
