#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace percheron {

/// A file open for writing. Bytes are durable only after sync().
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  /// Adds all of `bytes`, or fails, perhaps after a part of them.
  virtual Status append(std::span<const std::byte> bytes) = 0;
  /// Waits until everything appended is durable.
  virtual Status sync() = 0;
  /// Closes without syncing. The destructor closes too, but can't report.
  virtual Status close() = 0;
};

/// A read-only view of a whole file; valid as long as the object lives, also when the file is
/// replaced by rename meanwhile.
class MappedFile {
 public:
  virtual ~MappedFile() = default;
  virtual std::span<const std::byte> bytes() const = 0;
};

/// A lock on a file. The kernel takes it back when the process dies, however it dies.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

/// The files of the world behind one interface, so that faults can be injected. Thread-safe.
/// Every error names the path and what the operating system said: kNotFound where nothing lies
/// there, kResourceExhausted for a full disk, quota or table of open files, kFailedPrecondition for
/// what is in the way or forbidden, kInternal for the rest. Paths are absolute or relative to the
/// process's directory.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  /// An empty file, in place of what lay there.
  virtual Result<std::unique_ptr<WritableFile>> create(const std::string& path) = 0;
  /// kFailedPrecondition when there is such a file.
  virtual Result<std::unique_ptr<WritableFile>> create_new(const std::string& path) = 0;
  /// The file as it is, or an empty one, to write behind its end.
  virtual Result<std::unique_ptr<WritableFile>> open_append(const std::string& path) = 0;
  /// kFailedPrecondition for what is no regular file.
  virtual Result<std::unique_ptr<MappedFile>> map(const std::string& path) = 0;
  virtual Result<std::string> read_text(const std::string& path) = 0;
  /// In bytes, of a regular file.
  virtual Result<uint64_t> file_size(const std::string& path) = 0;
  /// Whether anything is reachable there; false too where it can't be told.
  virtual bool exists(const std::string& path) = 0;
  /// The names in a directory, sorted, without "." and "..".
  virtual Result<std::vector<std::string>> list(const std::string& directory) = 0;
  /// With all that lead there; ok where the directory is already.
  virtual Status create_directories(const std::string& path) = 0;
  /// Atomically; a file at `to` is replaced.
  virtual Status rename(const std::string& from, const std::string& to) = 0;
  /// A file, or a directory with all in it; ok where nothing lies.
  virtual Status remove_all(const std::string& path) = 0;
  /// Makes the entries of a directory durable (after create, rename, symlink).
  virtual Status sync_directory(const std::string& path) = 0;
  /// Points the symbolic link `link` at `target` (relative), atomically, replacing an older one.
  virtual Status replace_symlink(const std::string& target, const std::string& link) = 0;
  /// Where the link points, as it is written.
  virtual Result<std::string> read_symlink(const std::string& link) = 0;
  /// Locks `path`, which is created if need be and stays, against every other lock() of it, by this
  /// process or another. kUnavailable, naming the process that holds it, when it is locked.
  virtual Result<std::unique_ptr<FileLock>> lock(const std::string& path) = 0;
  /// What may still be written on the disk of `path`, which exists.
  virtual Result<uint64_t> free_bytes(const std::string& path) = 0;
};

/// The operating system's files.
FileSystem& system_files();

/// Writes `text` to a temporary name beside `path`, syncs and renames: readers see the old file or
/// the whole new one.
Status write_text_atomically(FileSystem& files, const std::string& path, std::string_view text);

/// `directory`/`name` with exactly one slash between.
std::string join_path(std::string_view directory, std::string_view name);

}  // namespace percheron
