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

// A worker's region, until the last who needs it is gone.
struct FeatureRegions::Made {
  Made(SharedRegion memory, std::shared_ptr<FreedList> list, Freed self)
      : region(std::move(memory)), freed(std::move(list)), what(self) {}
  Made(const Made&) = delete;
  Made& operator=(const Made&) = delete;
  ~Made() { freed->add(what); }

  const SharedRegion region;
  const std::shared_ptr<FreedList> freed;
  const Freed what;
};

void FeatureRegions::FreedList::add(Freed freed) {
  const std::lock_guard lock(mutex_);
  freed_.push_back(freed);
}

std::vector<FeatureRegions::Freed> FeatureRegions::FreedList::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(freed_, {});
}

Status FeatureRegions::keep(const std::string& run, const proto::PublishFeatures& what, pid_t maker,
                            FileDescriptor fd) {
  const proto::FeatureKey& key = what.key();
  if (!fd.valid()) return data_loss("features were announced without their memory");
  if (key.bytes() == 0) return data_loss("features were announced without bytes");
  PERCHERON_ASSIGN_OR_RETURN(
      SharedRegion mapped,
      SharedRegion::map_at_least(std::move(fd), key.bytes(), SharedRegion::Access::kRead));
  // Whatever becomes of it here, its maker hears when it is free.
  const auto made =
      std::make_shared<const Made>(std::move(mapped), freed_, Freed{maker, what.region()});
  const Region region(made, &made->region);
  const std::lock_guard lock(mutex_);
  ++(what.used_before() ? counts_.in_used_memory : counts_.in_new_memory);
  const Key name{run, id_of(key)};
  if (const auto older = kept_.find(name); older != kept_.end()) {
    // A target that was taken for dead may come last.
    if (older->second.generation >= key.generation()) return ok_status();
    drop(older);
  }
  PERCHERON_RETURN_IF_ERROR(offered_.add(
      slot(run, name.second), static_cast<uint64_t>(key.generation()) + 1, region, key.bytes()));
  kept_[name] = {key.generation(), key.bytes(), region};
  bytes_ += key.bytes();
  return ok_status();
}

Result<FileDescriptor> FeatureRegions::lend(const std::string& run, const proto::FeatureKey& key,
                                            pid_t reader, uint64_t request) {
  Region region;
  {
    const std::lock_guard lock(mutex_);
    const auto kept = kept_.find({run, id_of(key)});
    if (kept == kept_.end() || kept->second.generation != key.generation()) {
      return not_found(fmt::format("the features of micro-batch ({}, {}), lease {}, are not here",
                                   key.epoch(), key.index(), key.generation()));
    }
    region = kept->second.region;
  }
  return lend(std::move(region), reader, request);
}

Result<FileDescriptor> FeatureRegions::lend(Region region, pid_t reader, uint64_t request) {
  PERCHERON_ASSIGN_OR_RETURN(FileDescriptor fd, region->fd().duplicate());
  const std::lock_guard lock(mutex_);
  lent_[{reader, request}] = std::move(region);
  return fd;
}

void FeatureRegions::given_back(pid_t reader, uint64_t request) {
  const std::lock_guard lock(mutex_);
  lent_.erase({reader, request});
}

void FeatureRegions::process_ended(pid_t process) {
  const std::lock_guard lock(mutex_);
  std::erase_if(lent_, [&](const auto& entry) { return entry.first.first == process; });
}

void FeatureRegions::drop(std::map<Key, Kept>::iterator kept) {
  offered_.forget(slot(kept->first.first, kept->first.second));
  bytes_ -= kept->second.bytes;
  kept_.erase(kept);
}

void FeatureRegions::release(const std::string& run, const proto::ReleaseFeatures& what) {
  const std::lock_guard lock(mutex_);
  // Steps are released in order: what lies before is of no use either, though this node was not
  // told because it could not be reached then. Held-out data stays.
  const MicroBatchId first =
      what.epoch() < 0 ? MicroBatchId{what.epoch(), what.first()} : MicroBatchId{0, 0};
  auto kept = kept_.lower_bound({run, first});
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

FeatureRegions::Counts FeatureRegions::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace percheron
