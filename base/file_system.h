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
  virtual Status append(std::span<const std::byte> bytes) = 0;
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

/// The files of the world behind one interface, so that faults can be injected. Thread-safe.
/// Every error names the path and what the operating system said.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual Result<std::unique_ptr<WritableFile>> create(const std::string& path) = 0;
  virtual Result<std::unique_ptr<WritableFile>> open_append(const std::string& path) = 0;
  virtual Result<std::unique_ptr<MappedFile>> map(const std::string& path) = 0;
  virtual Result<std::string> read_text(const std::string& path) = 0;
  virtual Result<uint64_t> file_size(const std::string& path) = 0;
  virtual bool exists(const std::string& path) = 0;
  virtual Result<std::vector<std::string>> list(const std::string& directory) = 0;  // names, sorted
  virtual Status create_directories(const std::string& path) = 0;
  virtual Status rename(const std::string& from, const std::string& to) = 0;  // replaces `to`
  virtual Status remove_all(const std::string& path) = 0;
  /// Makes the entries of a directory durable (after create, rename, symlink).
  virtual Status sync_directory(const std::string& path) = 0;
  /// Points the symbolic link `link` at `target` (relative), atomically, replacing an older one.
  virtual Status replace_symlink(const std::string& target, const std::string& link) = 0;
  virtual Result<std::string> read_symlink(const std::string& link) = 0;
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
