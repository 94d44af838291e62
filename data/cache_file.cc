#include "data/cache_file.h"

#include <cstring>
#include <limits>

#include "base/hash.h"

namespace percheron {
namespace {

constexpr char kFileMagic[8] = {'P', 'E', 'R', 'C', 'A', 'C', 'H', '1'};
constexpr uint32_t kRecordMagic = 0x43455250;  // "PREC"
constexpr uint32_t kHeaderBytesMax = 1 << 20;

// What a file begins with; the header's text follows.
struct FilePrefix {
  char magic[8];
  uint32_t header_bytes;
  uint32_t header_crc32c;
};

// What a record begins with; its payload follows. `crc32c` is of the fields after it.
struct RecordPrefix {
  uint32_t magic;
  uint32_t crc32c;
  uint64_t sample;
  uint32_t rows;
  uint32_t tokens_crc32c;
  uint64_t payload_bytes;
  uint32_t payload_crc32c;
  uint32_t reserved;
};
static_assert(sizeof(FilePrefix) == 16 && sizeof(RecordPrefix) == 40);

constexpr size_t kCheckedFrom = offsetof(RecordPrefix, sample);

uint32_t prefix_crc32c(const RecordPrefix& prefix) {
  return crc32c(std::as_bytes(std::span(&prefix, 1)).subspan(kCheckedFrom));
}

CacheFile::HeaderState state_of(std::span<const std::byte> bytes) {
  FilePrefix prefix;
  if (bytes.size() < sizeof prefix) return CacheFile::HeaderState::kTorn;
  std::memcpy(&prefix, bytes.data(), sizeof prefix);
  if (std::memcmp(prefix.magic, kFileMagic, sizeof kFileMagic) != 0 ||
      prefix.header_bytes > kHeaderBytesMax)
    return CacheFile::HeaderState::kForeign;
  if (prefix.header_bytes > bytes.size() - sizeof prefix) return CacheFile::HeaderState::kTorn;
  const auto header = bytes.subspan(sizeof prefix, prefix.header_bytes);
  return crc32c(header) == prefix.header_crc32c ? CacheFile::HeaderState::kWhole
                                                : CacheFile::HeaderState::kForeign;
}

}  // namespace

uint64_t CacheFile::record_bytes(uint64_t payload_bytes) {
  return sizeof(RecordPrefix) + payload_bytes;
}

Result<std::unique_ptr<CacheFile>> CacheFile::create(FileSystem& files, const std::string& path,
                                                     std::string_view header) {
  PERCHERON_CHECK(header.size() <= kHeaderBytesMax, "a cache file's header is at most 1 MiB");
  std::unique_ptr<CacheFile> file(new CacheFile(files, path));
  file->header_ = header;
  FilePrefix prefix;
  std::memcpy(prefix.magic, kFileMagic, sizeof kFileMagic);
  prefix.header_bytes = static_cast<uint32_t>(header.size());
  prefix.header_crc32c = crc32c(std::as_bytes(std::span(header)));
  PERCHERON_ASSIGN_OR_RETURN(file->out_, files.create_new(path));
  PERCHERON_RETURN_IF_ERROR(file->out_->append(std::as_bytes(std::span(&prefix, 1))));
  PERCHERON_RETURN_IF_ERROR(file->out_->append(std::as_bytes(std::span(header))));
  file->bytes_ = sizeof prefix + header.size();
  return file;
}

Result<std::unique_ptr<CacheFile>> CacheFile::open(FileSystem& files, const std::string& path) {
  std::unique_ptr<CacheFile> file(new CacheFile(files, path));
  PERCHERON_ASSIGN_OR_RETURN(file->map_, files.map(path));
  const std::span<const std::byte> bytes = file->map_->bytes();
  file->bytes_ = bytes.size();
  file->header_state_ = state_of(bytes);
  if (file->header_state_ != HeaderState::kWhole) return file;
  FilePrefix prefix;
  std::memcpy(&prefix, bytes.data(), sizeof prefix);
  const auto header = bytes.subspan(sizeof prefix, prefix.header_bytes);
  file->header_.assign(reinterpret_cast<const char*>(header.data()), header.size());

  uint64_t offset = sizeof prefix + header.size();
  RecordPrefix record;
  while (bytes.size() - offset >= sizeof record) {
    std::memcpy(&record, bytes.data() + offset, sizeof record);
    if (record.magic != kRecordMagic || record.crc32c != prefix_crc32c(record) ||
        record.rows > static_cast<uint32_t>(std::numeric_limits<int32_t>::max()) ||
        record.payload_bytes > bytes.size() - offset - sizeof record)
      break;
    file->entries_.push_back({record.sample, static_cast<int32_t>(record.rows),
                              record.tokens_crc32c, record.payload_bytes, record.payload_crc32c,
                              offset});
    offset += record_bytes(record.payload_bytes);
  }
  return file;
}

Result<CacheFile::Entry> CacheFile::append(Entry entry, std::span<const std::byte> payload) {
  if (out_ == nullptr) return failed_precondition(path_ + " is not open for writing");
  entry.offset = bytes_;
  entry.payload_bytes = payload.size();
  entry.payload_crc32c = crc32c(payload);
  RecordPrefix prefix = {};
  prefix.magic = kRecordMagic;
  prefix.sample = entry.sample;
  prefix.rows = static_cast<uint32_t>(entry.rows);
  prefix.tokens_crc32c = entry.tokens_crc32c;
  prefix.payload_bytes = entry.payload_bytes;
  prefix.payload_crc32c = entry.payload_crc32c;
  prefix.crc32c = prefix_crc32c(prefix);
  Status status = out_->append(std::as_bytes(std::span(&prefix, 1)));
  if (status.ok()) status = out_->append(payload);
  if (!status.ok()) {
    out_.reset();  // What was written of the record, nobody knows: no other may follow it.
    return status;
  }
  bytes_ += record_bytes(payload.size());
  return entry;
}

Result<CacheFile::Payload> CacheFile::read(const Entry& entry) {
  const uint64_t begin = entry.offset + sizeof(RecordPrefix);
  const uint64_t end = begin + entry.payload_bytes;
  if (map_ == nullptr || end > map_->bytes().size()) {
    PERCHERON_ASSIGN_OR_RETURN(map_, files_.map(path_));
  }
  if (end > map_->bytes().size())
    return data_loss(path_ + " is shorter than its record at " + std::to_string(entry.offset));
  return Payload{map_, map_->bytes().subspan(begin, entry.payload_bytes)};
}

}  // namespace percheron
