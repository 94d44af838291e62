#pragma once

#include <atomic>
#include <csignal>
#include <string>
#include <thread>

#include "base/status.h"

namespace percheron {

/// What a daemon tells a process in its environment: the file of its standard output and error.
inline constexpr const char* kOutputVariable = "PERCHERON_OUTPUT_FILE";
/// Lets it open that file again. A daemon starts processes with this signal blocked, so that none
/// dies of it before it listens.
inline constexpr int kReopenSignal = SIGHUP;

/// From now on standard output and error of this process are appended to the file at `path`, which
/// is made when it is not there. Nothing that was written before is lost.
Status append_output_to(const std::string& path);

/// In a process of a daemon: opens its output file again whenever the daemon says so. To be made
/// before other threads.
class OutputReopener {
 public:
  OutputReopener();
  ~OutputReopener();
  OutputReopener(const OutputReopener&) = delete;
  OutputReopener& operator=(const OutputReopener&) = delete;

 private:
  std::atomic<bool> ending_{false};
  std::thread thread_;  // not joinable where no daemon told a file
};

}  // namespace percheron
