#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_system.h"
#include "base/status.h"

namespace percheron {

/// An append-only file of checksummed records behind a text header (docs/formats.md). A file that
/// was opened is only read: what a killed process tore at its end is never written after. Not
/// thread-safe, but what read() returns is.
class CacheFile {
 public:
  /// A record as its own header describes it.
  struct Entry {
    uint64_t sample = 0;
    int32_t rows = 0;
    uint32_t tokens_crc32c = 0;
    uint64_t payload_bytes = 0;
    uint32_t payload_crc32c = 0;
    uint64_t offset = 0;  // of the record in the file
  };
  /// A payload in the mapped file; valid as long as `owner` lives.
  struct Payload {
    std::shared_ptr<MappedFile> owner;
    std::span<const std::byte> bytes;
  };

  static Result<std::unique_ptr<CacheFile>> create(FileSystem& files, const std::string& path,
                                                   std::string_view header);
  /// Ok whatever the file holds, see header_state(); errors are those of the file system.
  static Result<std::unique_ptr<CacheFile>> open(FileSystem& files, const std::string& path);

  enum class HeaderState {
    kWhole,
    kTorn,     // the file ends within its header: a killed process left it, and it holds nothing
    kForeign,  // another version's, or no cache file at all
  };
  HeaderState header_state() const { return header_state_; }

  const std::string& path() const { return path_; }
  /// Empty unless it is whole.
  const std::string& header() const { return header_; }
  /// The whole records found by open(), in order; their payloads are not tested yet.
  const std::vector<Entry>& entries() const { return entries_; }
  uint64_t bytes() const { return bytes_; }
  static uint64_t record_bytes(uint64_t payload_bytes);

  /// Appends a record; offset and crc of `entry` are set here. After an error the file takes no
  /// more.
  Result<Entry> append(Entry entry, std::span<const std::byte> payload);
  /// The payload at `entry`, not yet tested against its checksum.
  Result<Payload> read(const Entry& entry);

 private:
  CacheFile(FileSystem& files, std::string path) : files_(files), path_(std::move(path)) {}

  FileSystem& files_;
  const std::string path_;
  HeaderState header_state_ = HeaderState::kWhole;
  std::string header_;
  std::vector<Entry> entries_;
  uint64_t bytes_ = 0;
  std::unique_ptr<WritableFile> out_;  // null when only read
  std::shared_ptr<MappedFile> map_;    // of what was there when it was mapped
};

}  // namespace percheron
