#include "actors/node/feature_regions.h"

#include <fmt/format.h>

#include <utility>

#include "base/hash.h"

namespace percheron {
namespace {

MicroBatchId id_of(const proto::FeatureKey& key) { return {key.epoch(), key.index()}; }

}  // namespace

uint64_t FeatureRegions::slot(const std::string& run, MicroBatchId id) {
  const std::string text = fmt::format("{} {} {}", run, id.epoch, id.index);
  return std::stoull(content_hash(std::as_bytes(std::span(text))).substr(0, 16), nullptr, 16);
}

Status FeatureRegions::keep(const std::string& run, const proto::FeatureKey& key,
                            FileDescriptor fd) {
  if (!fd.valid()) return data_loss("features were announced without their memory");
  PERCHERON_ASSIGN_OR_RETURN(SharedRegion mapped, SharedRegion::map(std::move(fd), key.bytes(),
                                                                    SharedRegion::Access::kRead));
  const auto region = std::make_shared<const SharedRegion>(std::move(mapped));
  const std::lock_guard lock(mutex_);
  const Key name{run, id_of(key)};
  if (const auto older = kept_.find(name); older != kept_.end()) {
    // A target that was taken for dead may come last.
    if (older->second.generation >= key.generation()) return ok_status();
    drop(older);
  }
  PERCHERON_RETURN_IF_ERROR(offered_.add(
      slot(run, name.second), static_cast<uint64_t>(key.generation()) + 1, region, key.bytes()));
  kept_[name] = {key.generation(), region};
  bytes_ += region->size();
  return ok_status();
}

Result<FileDescriptor> FeatureRegions::find(const std::string& run,
                                            const proto::FeatureKey& key) const {
  const std::lock_guard lock(mutex_);
  const auto kept = kept_.find({run, id_of(key)});
  if (kept == kept_.end() || kept->second.generation != key.generation()) {
    return not_found(fmt::format("the features of micro-batch ({}, {}), lease {}, are not here",
                                 key.epoch(), key.index(), key.generation()));
  }
  return kept->second.region->fd().duplicate();
}

void FeatureRegions::drop(std::map<Key, Kept>::iterator kept) {
  const auto& [name, region] = *kept;
  offered_.forget(slot(name.first, name.second));
  bytes_ -= region.region->size();
  kept_.erase(kept);
}

void FeatureRegions::release(const std::string& run, const proto::ReleaseFeatures& what) {
  const std::lock_guard lock(mutex_);
  auto kept = kept_.lower_bound({run, {what.epoch(), what.first()}});
  while (kept != kept_.end() && kept->first.first == run &&
         kept->first.second < MicroBatchId{what.epoch(), what.first() + what.count()}) {
    drop(kept++);
  }
}

void FeatureRegions::release_run(const std::string& run) {
  const std::lock_guard lock(mutex_);
  auto kept = kept_.lower_bound({run, {INT64_MIN, INT64_MIN}});
  while (kept != kept_.end() && kept->first.first == run) drop(kept++);
}

uint64_t FeatureRegions::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace percheron
