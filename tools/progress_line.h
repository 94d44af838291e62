#pragma once

#include <cstdio>
#include <string>

#include "actors/observer.h"
#include "base/clock.h"
#include "tools/printer.h"

namespace percheron {

/// "step 830/1600 (52%) | loss 6.530 | acc 0.55 0.48 0.44 | accept 1.58 | targets 1,210 trainers
/// 1,890 tok/s | wait 3% | pool 12.0 MiB | eta 6 min 00 s". acc: share of right drafts by position;
/// accept: the simulated acceptance length; targets, trainers: the tokens a second that they
/// compute while they are busy ("-": nothing, as where features come from the cache); wait: the
/// trainers' share of time without work; pool: bytes of features in flight.
std::string format_progress(const StepReport& report);
std::string format_evaluation(const EvaluationReport& report);

/// Shows a run to a person: one line that is rewritten on a terminal; elsewhere one line every few
/// seconds. Output that can't be written is given up with a warning; the run does not notice.
class ProgressLine : public RunObserver {
 public:
  enum class Style { kTerminal, kPlain };
  ProgressLine(std::FILE* out, Style style, const Clock& clock)
      : out_(out), style_(style), clock_(clock) {}

  void on_step(const StepReport& report) override;
  void on_evaluation(const EvaluationReport& report) override;
  void on_checkpoint(const CheckpointReport& report) override;
  void on_event(const std::string& text) override;
  void on_end(const RunSummary& summary) override;

 private:
  void print_above(const std::string& text);
  void show(const std::string& text);

  Printer out_;
  Style style_;
  const Clock& clock_;
  int64_t last_ns_ = 0;
  std::string line_;
};

/// kTerminal if `file` is a terminal that understands cursor movement.
ProgressLine::Style progress_style(std::FILE* file);

}  // namespace percheron
