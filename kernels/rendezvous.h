#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/file_system.h"

namespace percheron {

/// Where the members of a group leave the addresses at which the others reach them: small values
/// under keys, seen by all. Keys are letters, digits, '-', '_' and '.', and do not start with '.'.
/// Thread-safe.
class RendezvousStore {
 public:
  virtual ~RendezvousStore() = default;
  /// Gives `key` its value, for good. kFailedPrecondition where it has one.
  virtual Status set(const std::string& key, std::string_view value) = 0;
  /// Waits until `key` has a value, for `limit` at most, then kUnavailable.
  virtual Result<std::string> get(const std::string& key, std::chrono::milliseconds limit) = 0;
};

/// Keeps each value in a file of `directory`, which is created: for the processes of one machine,
/// or of several that share a disk. What it wrote stays; whoever made the directory removes it.
/// Waits by looking every few milliseconds.
std::shared_ptr<RendezvousStore> make_directory_rendezvous(FileSystem& files, std::string directory,
                                                           const Clock& clock = system_clock());

}  // namespace percheron
