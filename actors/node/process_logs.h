#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/status.h"

namespace percheron {

struct LogLimits {
  uint64_t bytes_max = uint64_t{64} << 20;  // of one file, about: it is looked at once a second
  int files_max = 3;                        // of one process, the one that is written now included
};

/// A part of what a process has said.
struct LogPart {
  std::string text;
  uint64_t begin = 0;  // of the text's first byte, in all that the process ever said
  uint64_t end() const { return begin + text.size(); }
};

/// The log files of the processes of runs, `directory`/RUN/PROCESS.log. One that is full is renamed
/// to PROCESS.log.BEGIN, BEGIN the offset of its first byte in all that the process ever said, and
/// the process, told by the caller, opens PROCESS.log anew. So nothing is copied or lost, and an
/// offset means the same before and after. Thread-safe.
class ProcessLogs {
 public:
  /// `files` is borrowed.
  ProcessLogs(FileSystem& files, std::string directory, LogLimits limits)
      : files_(files), directory_(std::move(directory)), limits_(limits) {}

  std::string directory_of(const std::string& run) const;
  /// `process` is "supervisor" or a device.
  std::string path_of(const std::string& run, const std::string& process) const;

  /// Sets the log at `path` aside when it is full, and removes what is beyond files_max. True: who
  /// writes to it must open `path` again, and may write to the old file until then.
  Result<bool> rotate_if_full(const std::string& path);
  /// From `offset` on, at most `bytes_max` of one file; from the first byte that is kept where that
  /// is later. An empty text: there is no more now. kNotFound when nothing was ever said.
  Result<LogPart> read(const std::string& path, uint64_t offset, size_t bytes_max) const;
  int64_t rotations() const { return rotations_; }

  /// The runs that have logs here.
  Result<std::vector<std::string>> runs() const;
  /// Takes a run's logs out of sight at once; remove_set_aside() removes them.
  Status set_aside(const std::string& run);
  Status remove_set_aside();

 private:
  struct OldFile {
    std::string path;
    uint64_t begin = 0, bytes = 0;
  };
  Result<std::vector<OldFile>> old_files(const std::string& path) const;

  FileSystem& files_;
  const std::string directory_;
  const LogLimits limits_;
  mutable std::mutex mutex_;  // names of files do not change while one is read
  std::atomic<int64_t> rotations_{0};
};

}  // namespace percheron
