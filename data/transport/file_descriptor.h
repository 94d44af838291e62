#pragma once

#include <cstdint>
#include <utility>

#include "base/status.h"

namespace percheron {

/// Owns a file descriptor of the operating system; closes it at the end.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() { reset(); }
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = other.release();
    }
    return *this;
  }

  bool valid() const { return fd_ >= 0; }
  /// Borrowed; -1 where there is none.
  int get() const { return fd_; }
  /// The caller owns it from now on.
  int release() { return std::exchange(fd_, -1); }
  void reset();
  /// Another descriptor of the same thing, closed on exec. kResourceExhausted when the process's
  /// table is full.
  Result<FileDescriptor> duplicate() const;

 private:
  int fd_ = -1;
};

/// Lets this process have as many descriptors open as the system allows it; returns how many.
Result<uint64_t> raise_descriptor_limit();

/// What the operating system said (`error` is an errno), after "cannot `action`: ", with the code
/// that callers go by: kResourceExhausted for memory and tables that are full, kUnavailable for
/// peers that can't be reached or went away, kFailedPrecondition for what is in use or forbidden.
Status os_error(std::string_view action, int error);

}  // namespace percheron
