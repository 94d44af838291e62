#pragma once

#include <memory>
#include <string>

#include "actors/observer.h"
#include "base/clock.h"
#include "base/file_system.h"

namespace percheron {

/// Appends one JSON object a line to metrics.jsonl: {"kind": "step", "step": 10, "epoch": 0,
/// "time": ..., "train/loss": ...}; kinds step, evaluation, checkpoint, event, end
/// (docs/formats.md). After a resume some steps stand twice: the later line counts.
class MetricsFile : public RunObserver {
 public:
  static Result<std::unique_ptr<MetricsFile>> open(FileSystem& files, const Clock& clock,
                                                   const std::string& path);

  void on_step(const StepReport& report) override;
  void on_evaluation(const EvaluationReport& report) override;
  void on_checkpoint(const CheckpointReport& report) override;
  void on_event(const std::string& text) override;
  void on_end(const RunSummary& summary) override;

 private:
  MetricsFile(std::unique_ptr<WritableFile> file, const Clock& clock)
      : file_(std::move(file)), clock_(clock) {}
  void write(const std::string& line);

  std::unique_ptr<WritableFile> file_;
  const Clock& clock_;
  bool failed_ = false;  // said once; training goes on
};

}  // namespace percheron
