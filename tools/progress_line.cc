#include "tools/progress_line.h"

#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "base/log.h"
#include "base/units.h"

namespace percheron {
namespace {

constexpr int64_t kTerminalIntervalNs = 200'000'000;
constexpr int64_t kPlainIntervalNs = 10'000'000'000;

std::string share(double value) { return fmt::format("{:.0f}%", 100 * value); }

std::string accuracies(const std::vector<double>& values) {
  std::string text;
  for (size_t i = 0; i < values.size() && i < 4; ++i) text += fmt::format(" {:.2f}", values[i]);
  return text;
}

std::string rate(double tokens_per_second) {
  return tokens_per_second > 0 ? format_count(static_cast<uint64_t>(tokens_per_second + 0.5)) : "-";
}

}  // namespace

std::string format_progress(const StepReport& report) {
  const double done =
      report.steps_total > 0 ? static_cast<double>(report.step) / report.steps_total : 0;
  return fmt::format(
      "step {}/{} ({}) | loss {:.3f} | acc{} | accept {:.2f} | targets {} trainers {} tok/s | wait "
      "{} | "
      "pool {} | eta {}",
      report.step, report.steps_total, share(done), report.loss,
      accuracies(report.position_accuracy), report.simulated_acceptance_length,
      rate(report.target_tokens_per_second), rate(report.trainer_tokens_per_second),
      share(report.wait_share), format_bytes(report.pool_bytes),
      format_duration(report.eta_seconds));
}

std::string format_evaluation(const EvaluationReport& report) {
  std::string text = fmt::format("step {}: held-out acceptance length (walk)", report.step);
  for (size_t i = 0; i < report.draft_lengths.size(); ++i) {
    text += fmt::format("{} {:.3f} at k = {}", i == 0 ? "" : ",", report.acceptance_length_walk[i],
                        report.draft_lengths[i]);
  }
  return text + fmt::format(" in {}{}", format_duration(report.seconds),
                            report.best ? ", best so far" : "");
}

void ProgressLine::print_above(const std::string& text) {
  if (style_ == Style::kTerminal) {
    show(fmt::format("\r\033[K{}\n{}", text, line_));
  } else {
    show(text + "\n");
  }
}

void ProgressLine::show(const std::string& text) {
  if (!out_.status().ok()) return;
  out_.write(text);
  if (!out_.status().ok())
    log_warning("progress is not shown any more, the run goes on: {}", out_.status().message());
}

void ProgressLine::on_step(const StepReport& report) {
  const int64_t now = clock_.monotonic_ns();
  const int64_t interval = style_ == Style::kTerminal ? kTerminalIntervalNs : kPlainIntervalNs;
  if (report.step != report.steps_total && report.step != 1 && now - last_ns_ < interval) return;
  last_ns_ = now;
  line_ = format_progress(report);
  if (style_ == Style::kTerminal) {
    show("\r\033[K" + line_);
  } else {
    show(line_ + "\n");
  }
}

void ProgressLine::on_evaluation(const EvaluationReport& report) {
  print_above(format_evaluation(report));
}

void ProgressLine::on_checkpoint(const CheckpointReport& report) {
  if (!report.error.empty()) {
    print_above(fmt::format("checkpoint of step {} failed: {}", report.step, report.error));
  } else {
    print_above(fmt::format("checkpoint: {} ({}, {})", report.directory, format_bytes(report.bytes),
                            format_duration(report.seconds)));
  }
}

void ProgressLine::on_event(const std::string& text) { print_above(text); }

void ProgressLine::on_end(const RunSummary& summary) {
  print_above(fmt::format(
      "{} {} steps, {} tokens in {} (features {}, training {})",
      summary.stopped_early ? "stopped after" : "done:", summary.steps,
      format_count(static_cast<uint64_t>(summary.tokens)), format_duration(summary.seconds),
      format_duration(summary.feature_seconds), format_duration(summary.train_seconds)));
  line_.clear();
}

ProgressLine::Style progress_style(std::FILE* file) {
  const char* term = std::getenv("TERM");
  const bool capable = term != nullptr && std::string_view(term) != "dumb";
  return capable && isatty(fileno(file)) != 0 ? ProgressLine::Style::kTerminal
                                              : ProgressLine::Style::kPlain;
}

}  // namespace percheron
