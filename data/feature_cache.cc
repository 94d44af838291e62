#include "data/feature_cache.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "base/units.h"
#include "data/directory_lock.h"

namespace percheron {
namespace {

constexpr std::string_view kPrefix = "features-";
constexpr std::string_view kSuffix = ".cache";
// What an entry costs in memory beside its payload, roughly.
constexpr size_t kEntryBytes = 160;

// The number in "features-00012.cache"; -1 for other names.
int64_t number_of(std::string_view name) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix) ||
      name.size() <= kPrefix.size() + kSuffix.size())
    return -1;
  const std::string_view digits =
      name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size());
  int64_t number = -1;
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), number);
  return error == std::errc() && end == digits.end() ? number : -1;
}

uint32_t tokens_crc32c(const MicroBatch& batch, int32_t document) {
  const auto begin = static_cast<size_t>(batch.offsets[document]);
  const auto end = static_cast<size_t>(batch.offsets[document + 1]);
  return crc32c(std::as_bytes(std::span(batch.token_ids).subspan(begin, end - begin)));
}

int32_t rows_of(const MicroBatch& batch, int32_t document) {
  return batch.offsets[document + 1] - batch.offsets[document];
}

size_t payload_bytes(const FeatureShape& shape, int64_t rows) {
  return shape.hidden_bytes(rows) +
         (shape.has_top1 ? static_cast<size_t>(rows) * sizeof(int32_t) : 0);
}

// Copies one document's payload into rows [begin, begin + rows) of `features`.
void put_payload(std::span<const std::byte> payload, int64_t begin, int64_t rows,
                 Features& features) {
  const FeatureShape shape = features.shape();
  const size_t hidden = shape.hidden_bytes(rows);
  std::memcpy(features.hidden_states.data() + shape.hidden_bytes(begin), payload.data(), hidden);
  if (shape.has_top1)
    std::memcpy(features.top1.data() + begin, payload.data() + hidden,
                static_cast<size_t>(rows) * sizeof(int32_t));
}

std::vector<std::byte> take_payload(const Features& features, int32_t document) {
  const FeatureShape shape = features.shape();
  const int64_t begin = features.batch.offsets[document];
  const int64_t rows = rows_of(features.batch, document);
  std::vector<std::byte> payload(payload_bytes(shape, rows));
  const size_t hidden = shape.hidden_bytes(rows);
  std::memcpy(payload.data(), features.hidden_states.data() + shape.hidden_bytes(begin), hidden);
  if (shape.has_top1)
    std::memcpy(payload.data() + hidden, features.top1.data() + begin, payload.size() - hidden);
  return payload;
}

}  // namespace

Result<std::unique_ptr<FeatureCache>> FeatureCache::open(FileSystem& files,
                                                         FeatureCacheOptions options) {
  std::unique_ptr<FeatureCache> cache(new FeatureCache(files, std::move(options)));
  if (cache->options_.disk_bytes_max > 0) PERCHERON_RETURN_IF_ERROR(cache->open_files());
  return cache;
}

FeatureCache::FeatureCache(FileSystem& files, FeatureCacheOptions options)
    : files_(files),
      options_(std::move(options)),
      fingerprint_digest_(options_.fingerprint.digest()) {}

FeatureCache::~FeatureCache() = default;

std::string FeatureCache::header_text() const {
  const FeatureShape& shape = options_.shape;
  const nlohmann::json header = {{"format", "percheron.feature_cache.v1"},
                                 {"dtype", dtype_name(shape.dtype)},
                                 {"slots", shape.slots},
                                 {"hidden_size", shape.hidden_size},
                                 {"has_last", shape.has_last},
                                 {"has_top1", shape.has_top1},
                                 {"fingerprint", options_.fingerprint.text()}};
  return header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Status FeatureCache::check_header(const CacheFile& file) const {
  if (file.header_state() != CacheFile::HeaderState::kWhole)
    return failed_precondition(file.path() +
                               " is no feature cache of this version, or its header is damaged: "
                               "move it away, or give another directory");
  if (file.header() == header_text()) return ok_status();
  PERCHERON_ASSIGN_OR_RETURN(const nlohmann::json header, parse_json(file.header(), file.path()));
  PERCHERON_ASSIGN_OR_RETURN(const std::string text,
                             json_get<std::string>(header, "fingerprint", file.path()));
  PERCHERON_ASSIGN_OR_RETURN(const Fingerprint saved, Fingerprint::parse(text, file.path()));
  PERCHERON_RETURN_IF_ERROR(compare_fingerprints(saved, "the feature cache " + file.path(),
                                                 options_.fingerprint, "this run"));
  return failed_precondition("the feature cache " + file.path() +
                             " holds features of another shape: " + file.header() +
                             ", this run makes " + header_text());
}

Status FeatureCache::open_files() {
  PERCHERON_RETURN_IF_ERROR(files_.create_directories(options_.directory));
  // Another process would remove or truncate files that are mapped here.
  PERCHERON_ASSIGN_OR_RETURN(
      lock_, lock_directory(files_, options_.directory, "the feature cache directory"));
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<std::string> names, files_.list(options_.directory));
  for (const std::string& name : names) {
    const int64_t number = number_of(name);
    if (number < 0) continue;
    next_file_ = std::max(next_file_, number + 1);
    PERCHERON_RETURN_IF_ERROR(open_file(join_path(options_.directory, name)));
  }
  return ok_status();
}

Status FeatureCache::open_file(const std::string& path) {
  PERCHERON_ASSIGN_OR_RETURN(std::unique_ptr<CacheFile> opened, CacheFile::open(files_, path));
  if (opened->header_state() == CacheFile::HeaderState::kTorn) {
    opened.reset();
    log_warning("removing {}, which ends within its header", path);
    return files_.remove_all(path);
  }
  const Status fits = check_header(*opened);
  if (!fits.ok()) {
    if (options_.on_foreign == FeatureCacheOptions::OnForeign::kRefuse)
      return fits.with_context("features.cache_directory does not belong to this run");
    opened.reset();
    log_warning("removing a feature cache file: {}", fits.message());
    ++counters_.foreign;
    return files_.remove_all(path);
  }
  CacheFile* file = opened.get();
  for (const CacheFile::Entry& entry : file->entries()) {
    if (entry.payload_bytes != payload_bytes(options_.shape, entry.rows)) continue;
    places_.insert({entry.sample, {entry, nullptr, file}});
  }
  counters_.disk_bytes += file->bytes();
  counters_.samples = static_cast<int64_t>(places_.size());
  cache_files_.push_back(std::move(opened));
  return ok_status();
}

bool FeatureCache::matches(const Place& place, int32_t rows, uint32_t tokens_crc32c) {
  return place.entry.rows == rows && place.entry.tokens_crc32c == tokens_crc32c;
}

Status FeatureCache::insert(const Features& features) {
  if (features.fingerprint != fingerprint_digest_)
    return failed_precondition("features of fingerprint " + features.fingerprint +
                               " do not belong in the cache of " + fingerprint_digest_);
  if (features.shape() != options_.shape)
    return failed_precondition("features of another shape do not belong in this cache");
  for (int32_t d = 0; d < features.batch.documents(); ++d) insert_document(features, d);
  return ok_status();
}

void FeatureCache::insert_document(const Features& features, int32_t document) {
  const uint64_t sample = features.batch.sample_ids[document];
  Place place;
  place.entry.sample = sample;
  place.entry.rows = rows_of(features.batch, document);
  place.entry.tokens_crc32c = tokens_crc32c(features.batch, document);
  const size_t bytes = payload_bytes(options_.shape, place.entry.rows);

  const std::lock_guard lock(mutex_);
  if (places_.count(sample) != 0) return;
  if (counters_.memory_bytes + bytes + kEntryBytes <= options_.memory_bytes_max) {
    place.record = std::make_shared<const Record>(take_payload(features, document));
    counters_.memory_bytes += bytes + kEntryBytes;
  } else if (disk_failed_ ||
             counters_.disk_bytes + CacheFile::record_bytes(bytes) > options_.disk_bytes_max ||
             !append_to_disk(place, take_payload(features, document))) {
    ++counters_.rejected;
    return;
  }
  places_.insert({sample, std::move(place)});
  counters_.samples = static_cast<int64_t>(places_.size());
}

bool FeatureCache::append_to_disk(Place& place, const Record& record) {
  const auto failed = [&](const Status& status) {
    disk_failed_ = true;
    log_warning("the feature cache takes no more samples on disk: {}", status.message());
    return false;
  };
  if (out_ == nullptr) {
    const std::string number = std::to_string(next_file_++);
    const std::string name = std::string(kPrefix) +
                             std::string(5 - std::min<size_t>(5, number.size()), '0') + number +
                             std::string(kSuffix);
    auto created = CacheFile::create(files_, join_path(options_.directory, name), header_text());
    if (!created.ok()) return failed(created.status());
    cache_files_.push_back(std::move(created).value());
    out_ = cache_files_.back().get();
    counters_.disk_bytes += out_->bytes();
  }
  const Result<CacheFile::Entry> written = out_->append(place.entry, record);
  if (!written.ok()) return failed(written.status());
  place.entry = *written;
  place.file = out_;
  counters_.disk_bytes += CacheFile::record_bytes(record.size());
  return true;
}

std::vector<int32_t> FeatureCache::missing_documents(const MicroBatch& batch) const {
  std::vector<int32_t> missing;
  for (int32_t d = 0; d < batch.documents(); ++d) {
    const uint32_t crc = tokens_crc32c(batch, d);
    const std::lock_guard lock(mutex_);
    const auto place = places_.find(batch.sample_ids[d]);
    if (place == places_.end() || !matches(place->second, rows_of(batch, d), crc))
      missing.push_back(d);
  }
  return missing;
}

FeatureCache::Found FeatureCache::find(uint64_t sample, int32_t rows, uint32_t crc) {
  CacheFile::Entry entry;
  CacheFile::Payload payload;
  {
    const std::lock_guard lock(mutex_);
    const auto place = places_.find(sample);
    if (place == places_.end() || !matches(place->second, rows, crc)) {
      ++counters_.misses;
      return {};
    }
    if (const auto& record = place->second.record) {
      ++counters_.hits;
      return {record, std::span(*record)};
    }
    entry = place->second.entry;
    Result<CacheFile::Payload> read = place->second.file->read(entry);
    if (read.ok()) payload = std::move(read).value();
  }
  // Without the lock: this reads the disk.
  const bool good = payload.owner != nullptr && crc32c(payload.bytes) == entry.payload_crc32c;
  const std::lock_guard lock(mutex_);
  if (good) {
    ++counters_.hits;
    return {payload.owner, payload.bytes};
  }
  ++counters_.misses;
  ++counters_.corrupt;
  log_warning("the feature cache forgets sample {}: its record is damaged", sample);
  places_.erase(sample);
  counters_.samples = static_cast<int64_t>(places_.size());
  return {};
}

FeaturesPtr FeatureCache::assemble(const MicroBatch& batch, const Features* fresh) {
  PERCHERON_CHECK(fresh == nullptr || (fresh->shape() == options_.shape &&
                                       fresh->fingerprint == fingerprint_digest_),
                  "fresh features are those of this cache's run");
  std::unordered_map<uint64_t, int32_t> fresh_documents;
  for (int32_t d = 0; fresh != nullptr && d < fresh->batch.documents(); ++d)
    fresh_documents.insert({fresh->batch.sample_ids[d], d});

  const auto features = std::make_shared<Features>();
  features->batch = batch;
  features->dtype = options_.shape.dtype;
  features->slots = options_.shape.slots;
  features->hidden_size = options_.shape.hidden_size;
  features->has_last = options_.shape.has_last;
  features->fingerprint = fingerprint_digest_;
  features->hidden_states.resize(options_.shape.hidden_bytes(batch.tokens()));
  if (options_.shape.has_top1) features->top1.resize(static_cast<size_t>(batch.tokens()));

  for (int32_t d = 0; d < batch.documents(); ++d) {
    const int32_t rows = rows_of(batch, d);
    const uint32_t crc = tokens_crc32c(batch, d);
    const auto made = fresh_documents.find(batch.sample_ids[d]);
    if (made != fresh_documents.end()) {
      if (rows_of(fresh->batch, made->second) != rows ||
          tokens_crc32c(fresh->batch, made->second) != crc)
        return nullptr;
      put_payload(take_payload(*fresh, made->second), batch.offsets[d], rows, *features);
      // Who captured may have closed rows.
      std::copy_n(fresh->batch.loss_mask.begin() + fresh->batch.offsets[made->second], rows,
                  features->batch.loss_mask.begin() + batch.offsets[d]);
      continue;
    }
    const Found found = find(batch.sample_ids[d], rows, crc);
    if (found.owner == nullptr) return nullptr;
    put_payload(found.bytes, batch.offsets[d], rows, *features);
  }
  return features;
}

FeatureCacheCounters FeatureCache::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

}  // namespace percheron
