#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "base/file_system.h"

namespace percheron {

/// A file system in memory that fails on demand, for tests of what survives a fault. It remembers
/// what was synced: a file's bytes are durable after WritableFile::sync(), a directory's entries
/// after sync_directory(), as POSIX promises and no more. Relative paths start at "/". Thread-safe.
class FaultFileSystem final : public FileSystem {
 public:
  struct Node;

  FaultFileSystem();
  ~FaultFileSystem() override;

  /// Lets `bytes` more be appended; what goes beyond is kResourceExhausted, after a partial write.
  void fill_disk_after(uint64_t bytes);
  /// Takes the limit of fill_disk_after() away.
  void free_disk();
  /// The `nth` operation from now (1 is the next) fails with `status`; those after it work again.
  void fail_operation(uint64_t nth, Status status);
  /// The `nth` operation from now and all later ones fail with kUnavailable until restart.
  void cut_power_at_operation(uint64_t nth);
  /// What every call counts: each FileSystem and WritableFile call is one operation. exists() never
  /// fails and is not counted.
  uint64_t operation_count() const;

  /// Starts again after a crash, with only what was synced.
  void restart_keeping_synced();
  /// Starts again after a crash with a seeded choice, for each directory and file, of a state
  /// between what was synced and what was written last.
  void restart_keeping_some(uint64_t seed);

  Result<std::unique_ptr<WritableFile>> create(const std::string& path) override;
  Result<std::unique_ptr<WritableFile>> create_new(const std::string& path) override;
  Result<std::unique_ptr<WritableFile>> open_append(const std::string& path) override;
  Result<std::unique_ptr<MappedFile>> map(const std::string& path) override;
  Result<std::string> read_text(const std::string& path) override;
  Result<uint64_t> file_size(const std::string& path) override;
  bool exists(const std::string& path) override;
  Result<std::vector<std::string>> list(const std::string& directory) override;
  Status create_directories(const std::string& path) override;
  Status rename(const std::string& from, const std::string& to) override;
  Status remove_all(const std::string& path) override;
  Status sync_directory(const std::string& path) override;
  Status replace_symlink(const std::string& target, const std::string& link) override;
  Result<std::string> read_symlink(const std::string& link) override;
  Result<std::unique_ptr<FileLock>> lock(const std::string& path) override;
  Result<uint64_t> free_bytes(const std::string& path) override;

  /// For open files only: counts an operation on `file` and does it.
  Status append_to(Node& file, const std::string& path, std::span<const std::byte> bytes);
  Status sync_file(Node& file, const std::string& path);
  /// For locks only.
  void unlock(const std::string& path);

 private:
  using NodePointer = std::shared_ptr<Node>;
  enum class Kind { kFile, kDirectory, kSymlink };
  enum class Contents { kTruncated, kKept, kNone };  // kNone: there must be no such file
  /// Where a path leads: its directory, and what lies there under its last name, if anything.
  struct Place {
    NodePointer directory;
    std::string name;
    NodePointer node;
  };

  Status count_operation(const std::string& path);
  Result<Place> find(const std::string& path, bool follow_last, int links_left) const;
  Result<NodePointer> existing(const std::string& path, Kind kind) const;
  Result<std::unique_ptr<WritableFile>> open_to_write(const std::string& path, Contents contents);

  mutable std::mutex mutex_;
  NodePointer root_;
  uint64_t operation_count_ = 0;
  uint64_t failing_operation_ = 0;  // 0 for none
  Status failure_;
  uint64_t power_cut_operation_ = 0;  // 0 for none
  std::optional<uint64_t> disk_bytes_left_;
  std::set<std::string> locks_;
};

}  // namespace percheron
