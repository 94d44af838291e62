#pragma once

#include <cstdio>
#include <string>

#include "actors/feature_capture.h"
#include "base/clock.h"
#include "tools/printer.h"
#include "tools/progress_line.h"

namespace percheron {

/// "1,200 of 1,600 samples (75%) | 3.42 GiB written | 1,210 tok/s | 2 not finite | eta 6 min 00 s".
std::string format_capture(const CaptureProgress& progress);
/// "1,600 samples captured in 12 min 00 s (4.56 GiB); 3 were there already, 2 left out: ...".
std::string format_capture_end(const CaptureSummary& summary);

/// Shows a capture to a person: one line that is rewritten on a terminal; elsewhere one line every
/// few seconds. Output that can't be written is given up; the capture does not notice.
class CaptureLine final : public CaptureObserver {
 public:
  CaptureLine(std::FILE* out, ProgressLine::Style style, const Clock& clock)
      : out_(out), style_(style), clock_(clock) {}

  void on_progress(const CaptureProgress& progress) override;
  void on_event(const std::string& text) override;

 private:
  Printer out_;
  ProgressLine::Style style_;
  const Clock& clock_;
  bool shown_ = false;
  int64_t last_ns_ = 0;
  std::string line_;
};

}  // namespace percheron
