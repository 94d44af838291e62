#pragma once

#include <memory>
#include <string>

#include "actors/observer.h"
#include "base/clock.h"
#include "base/file_system.h"
#include "tools/metric_names.h"

namespace percheron {

/// Writes a TensorBoard event file, events.out.tfevents.<seconds>.percheron, one per start of a
/// run. Source: tensorflow/core/util/event.proto and the TFRecord framing (masked CRC-32C).
class TensorboardFile : public RunObserver {
 public:
  static Result<std::unique_ptr<TensorboardFile>> create(FileSystem& files, const Clock& clock,
                                                         const std::string& directory);

  void on_step(const StepReport& report) override;
  void on_evaluation(const EvaluationReport& report) override;

 private:
  TensorboardFile(std::unique_ptr<WritableFile> file, const Clock& clock)
      : file_(std::move(file)), clock_(clock) {}
  void write_event(int64_t step, const Scalars& scalars);
  void write_record(const std::string& record);

  std::unique_ptr<WritableFile> file_;
  const Clock& clock_;
  bool failed_ = false;
};

}  // namespace percheron
