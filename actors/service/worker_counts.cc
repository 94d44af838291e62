#include "actors/service/worker_counts.h"

namespace percheron {
namespace {

enum class Process { kWorks, kEnded };

void add(const proto::WorkerCounts& counts, Process process, FeatureSources& sums) {
  if (counts.of_files()) {
    if (!sums.files) sums.files.emplace();
    sums.files->read += counts.from_files();
    sums.files->absent += counts.absent();
    sums.files->too_short += counts.too_short();
    sums.files->other_tokens += counts.other_tokens();
    sums.files->unusable += counts.unusable();
  }
  if (!counts.of_cache()) return;
  if (!sums.cache) sums.cache.emplace();
  sums.cache->hits += counts.cache_hits();
  sums.cache->misses += counts.cache_misses();
  if (process == Process::kEnded) return;  // What it held is gone, or another one has opened it.
  sums.cache->memory_bytes += counts.cache_memory_bytes();
  sums.cache->disk_bytes += counts.cache_disk_bytes();
}

int64_t total(const proto::WorkerCounts& counts) {
  return counts.from_files() + counts.absent() + counts.too_short() + counts.other_tokens() +
         counts.unusable() + counts.cache_hits() + counts.cache_misses();
}

}  // namespace

proto::WorkerCounts counts_of(const FeatureSources& sources, int attempt) {
  proto::WorkerCounts counts;
  counts.set_attempt(attempt);
  if (sources.files) {
    counts.set_of_files(true);
    counts.set_from_files(sources.files->read);
    counts.set_absent(sources.files->absent);
    counts.set_too_short(sources.files->too_short);
    counts.set_other_tokens(sources.files->other_tokens);
    counts.set_unusable(sources.files->unusable);
  }
  if (sources.cache) {
    counts.set_of_cache(true);
    counts.set_cache_hits(sources.cache->hits);
    counts.set_cache_misses(sources.cache->misses);
    counts.set_cache_memory_bytes(sources.cache->memory_bytes);
    counts.set_cache_disk_bytes(sources.cache->disk_bytes);
  }
  return counts;
}

void WorkerCountSums::take(const PlacedDevices& from, const proto::WorkerCounts& counts) {
  const std::lock_guard lock(mutex_);
  proto::WorkerCounts& last = last_[from];
  // A device that was taken out and comes back begins with the first attempt again.
  if (last.attempt() != counts.attempt() || total(counts) < total(last)) {
    add(last, Process::kEnded, ended_);
  }
  last = counts;
}

FeatureSources WorkerCountSums::sums() const {
  const std::lock_guard lock(mutex_);
  FeatureSources sums = ended_;
  for (const auto& [placed, counts] : last_) add(counts, Process::kWorks, sums);
  return sums;
}

}  // namespace percheron
