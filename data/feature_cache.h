#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/file_system.h"
#include "base/status.h"
#include "data/cache_file.h"
#include "data/features.h"
#include "data/fingerprint.h"

namespace percheron {

struct FeatureCacheOptions {
  size_t memory_bytes_max = 0;  // features.cache_memory_bytes_max
  size_t disk_bytes_max = 0;    // features.cache_disk_bytes_max, of all files in the directory
  std::string directory;        // created when disk_bytes_max > 0; locked by one cache at a time
  FeatureShape shape;
  Fingerprint fingerprint;  // of the run
  enum class OnForeign { kRefuse, kClear } on_foreign = OnForeign::kRefuse;
};

struct FeatureCacheCounters {
  size_t memory_bytes = 0;
  size_t disk_bytes = 0;
  int64_t samples = 0;  // in memory and on disk
  int64_t hits = 0;     // of samples
  int64_t misses = 0;
  int64_t rejected = 0;  // samples that found no room
  int64_t corrupt = 0;   // records that failed their checksum and were forgotten
  int64_t foreign = 0;   // files of another run that were removed
};

/// Keeps features of earlier epochs, so that the target need not run again. Entries are samples,
/// not micro-batches, because each epoch packs differently; that is sound because a sample's
/// features do not depend on its neighbours (docs/formats.md, Features).
///
/// Policy *keep-first*: memory fills, then the disk, then nothing more is inserted and nothing is
/// evicted. Every epoch visits every sample once in a fresh order, so all samples are equally far
/// from their next use; replacing one by another gains nothing, and under a cyclic scan LRU would
/// even lose every entry just before it is needed.
///
/// Disk records live in append-only files; a record is found only after it was written whole, and
/// its checksum is tested at every read. Nothing is synced: losing a cache costs time only.
/// Thread-safe.
class FeatureCache {
 public:
  /// Opens the directory's files where there is a disk part. Files of another fingerprint or shape
  /// are refused (kFailedPrecondition names the field that differs) or removed, as on_foreign says.
  /// A torn end of a file, as a killed process leaves it, is passed over. The directory is locked
  /// as long as the cache lives: kFailedPrecondition when another run has it.
  static Result<std::unique_ptr<FeatureCache>> open(FileSystem& files, FeatureCacheOptions options);
  ~FeatureCache();
  FeatureCache(const FeatureCache&) = delete;
  FeatureCache& operator=(const FeatureCache&) = delete;

  /// Takes copies of the samples of `features` that are not here yet and for which there is room. A
  /// failing disk stops insertion there, with a warning, and nothing else. kFailedPrecondition when
  /// the shape or fingerprint is not the cache's.
  Status insert(const Features& features);

  /// The documents of `batch`, ascending, whose features must be made anew. A document is present
  /// only with the same tokens.
  std::vector<int32_t> missing_documents(const MicroBatch& batch) const;

  /// Features of `batch` from the cache and, for documents that are not there, from `fresh` (null
  /// for none), whose documents are found by sample id. Null when a document is in neither, as
  /// after a failed checksum: then ask missing_documents() again. Equal to the bit to features made
  /// in one pass. Loss masks of fresh documents are those of `fresh`.
  FeaturesPtr assemble(const MicroBatch& batch, const Features* fresh);

  FeatureCacheCounters counters() const;

 private:
  /// One sample's hidden states [rows, slots, H], then top1 int32 [rows] where the shape has it.
  using Record = std::vector<std::byte>;
  /// Where a sample's record is: in memory, or in a file.
  struct Place {
    CacheFile::Entry entry;
    std::shared_ptr<const Record> record;  // null when on disk
    CacheFile* file = nullptr;
  };
  /// A record's bytes and what keeps them alive.
  struct Found {
    std::shared_ptr<const void> owner;
    std::span<const std::byte> bytes;
  };

  FeatureCache(FileSystem& files, FeatureCacheOptions options);
  Status open_files();
  Status open_file(const std::string& path);
  std::string header_text() const;
  Status check_header(const CacheFile& file) const;
  void insert_document(const Features& features, int32_t document);
  bool append_to_disk(Place& place, const Record& record);
  /// Empty bytes when the sample is not here; `matches` tells the tokens.
  Found find(uint64_t sample, int32_t rows, uint32_t tokens_crc32c);
  static bool matches(const Place& place, int32_t rows, uint32_t tokens_crc32c);

  FileSystem& files_;
  std::unique_ptr<FileLock> lock_;  // of the directory; null without a disk part
  const FeatureCacheOptions options_;
  const std::string fingerprint_digest_;
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, Place> places_;
  std::vector<std::unique_ptr<CacheFile>> cache_files_;
  CacheFile* out_ = nullptr;  // the one that is written to, made at the first record
  int64_t next_file_ = 0;
  bool disk_failed_ = false;
  FeatureCacheCounters counters_;
};

}  // namespace percheron
