#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "actors/capture_plan.h"
#include "actors/run_setup.h"
#include "base/file_system.h"
#include "base/status.h"
#include "data/fingerprint.h"

namespace percheron {

/// A directory that one capture writes: locked, with a file that says whose features it holds,
/// written before the first of them.
class CaptureDirectory {
 public:
  /// Makes the directory or takes up an earlier capture of the same settings, and removes what was
  /// being written when it ended. kFailedPrecondition: another capture's (names the first field
  /// that differs), a directory that holds anything else, one in use.
  static Result<CaptureDirectory> open(FileSystem& files, const CaptureOptions& options,
                                       const Fingerprint& settings);

  /// Writes down what was captured. Waits until all names are durable.
  Status finish(int64_t samples, int64_t left_out, int64_t not_finite);

 private:
  CaptureDirectory(FileSystem& files, std::string path, Fingerprint settings);
  /// Whether it is a capture's, which then is one of the same settings; else it holds nothing.
  Result<bool> check() const;

  FileSystem* files_;
  std::string path_;
  Fingerprint settings_;
  std::unique_ptr<FileLock> lock_;
};

/// What an earlier start of a capture has left.
struct CapturedFiles {
  std::vector<bool> done;     // by position in the selection: needs no capture
  int64_t samples_whole = 0;  // of these, in files
  int64_t not_finite = 0;     // of these, left out of a shard
  int64_t damaged = 0;        // samples whose files can't be used
  uint64_t bytes = 0;         // of the whole samples' files
};

/// Opens every file that the plan names and compares its tokens with the data's. States are not
/// read: a file that was renamed was written whole.
Result<CapturedFiles> find_captured(FileSystem& files, const RunSetup& setup,
                                    const CaptureOptions& options, const CapturePlan& plan);

/// Removes a directory that a capture made but wrote no features to.
void remove_unused_capture(FileSystem& files, const std::string& directory);

}  // namespace percheron
