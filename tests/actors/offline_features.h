#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/feature_capture.h"
#include "tests/actors/tiny_run.h"
#include "tests/model/toy_model.h"

namespace percheron {

/// Keeps everything that it is told.
class RecordingCapture final : public CaptureObserver {
 public:
  void on_progress(const CaptureProgress& progress) override { progress_.push_back(progress); }
  void on_event(const std::string& text) override { events_.push_back(text); }
  const std::vector<CaptureProgress>& progress() const { return progress_; }
  bool heard(const std::string& part) const {
    for (const std::string& event : events_) {
      if (event.find(part) != std::string::npos) return true;
    }
    return false;
  }

 private:
  std::vector<CaptureProgress> progress_;
  std::vector<std::string> events_;
};

/// capture_to_files() as the command does it, with the operating system's files and clock.
inline Result<CaptureSummary> capture_tiny(const proto::Run& run, const CaptureOptions& options,
                                           CaptureObserver& observer) {
  PERCHERON_ASSIGN_OR_RETURN(const auto setup, resolve_run(run, system_files()));
  PERCHERON_ASSIGN_OR_RETURN(CapturePlan plan, plan_capture(*setup, options));
  return capture_to_files(setup, options, std::move(plan), system_files(), system_clock(),
                          observer);
}

/// A fresh directory of the test's that is not there yet.
inline std::string no_directory(const std::string& name) {
  const std::string path = testing::TempDir() + name;
  EXPECT_TRUE(system_files().remove_all(path).ok());
  return path;
}

/// The files of a directory, but its lock, by name.
inline std::map<std::string, std::string> contents_of(const std::string& directory) {
  std::map<std::string, std::string> contents;
  const std::vector<std::string> names = system_files().list(directory).value();
  for (const std::string& name : names) {
    if (name != ".lock") contents[name] = read_file(join_path(directory, name));
  }
  return contents;
}

}  // namespace percheron
