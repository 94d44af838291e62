#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "actors/capture_plan.h"
#include "actors/run_setup.h"
#include "base/clock.h"
#include "base/file_system.h"
#include "base/status.h"

namespace percheron {

/// How far a capture is.
struct CaptureProgress {
  int64_t samples = 0, samples_total = 0;  // whole, those of an earlier start included
  int64_t not_finite = 0;
  uint64_t bytes = 0;            // written since this start
  double tokens_per_second = 0;  // since this start
  double eta_seconds = 0;
};

/// Hears of a capture, from one thread.
class CaptureObserver {
 public:
  virtual ~CaptureObserver() = default;
  virtual void on_progress(const CaptureProgress&) {}
  /// A sentence for people.
  virtual void on_event(const std::string&) {}
};

struct CaptureSummary {
  int64_t captured = 0;    // samples written since this start
  int64_t found = 0;       // that were whole already
  int64_t remade = 0;      // of the captured ones, whose files were damaged or too short
  int64_t not_finite = 0;  // left out
  uint64_t bytes = 0;      // written since this start
  double seconds = 0;
};

/// The name of the file that says what a capture directory holds.
inline constexpr const char* kCaptureSetFile = "capture.json";

/// Runs the target over the planned samples, on every device of placement.targets, and writes their
/// features to options.directory. Files appear whole or not at all; what is there already is
/// checked, kept and counted, so that the same call goes on after any kind of end. Samples of which
/// a state is not finite are left out.
/// kFailedPrecondition for a directory of another capture (the field that differs is named), one
/// that holds anything else, or one in use; kResourceExhausted when the disk is full, at the start
/// or later: what was written stays.
Result<CaptureSummary> capture_to_files(std::shared_ptr<const RunSetup> setup,
                                        const CaptureOptions& options, CapturePlan plan,
                                        FileSystem& files, const Clock& clock,
                                        CaptureObserver& observer);

}  // namespace percheron
