#include "data/feature_store.h"

#include <algorithm>
#include <vector>

#include "base/units.h"

namespace percheron {
namespace {

std::string describe(MicroBatchId id) {
  return "micro-batch " + std::to_string(id.index) + " of epoch " + std::to_string(id.epoch);
}

}  // namespace

// The sums that the limit is about.
struct FeatureStore::Ledger {
  std::mutex mutex;
  FeatureStoreCounters counters;

  void check(const FeatureStoreLimits& limits) {
    counters.peak_bytes = std::max(counters.peak_bytes, counters.bytes());
    PERCHERON_CHECK(counters.bytes() <= limits.bytes_max,
                    "invariant 2: feature bytes exceed features.bytes_max");
  }
};

// What every reader's pointer keeps alive; its end is the moment when the last reader lets go.
struct FeatureStore::Lease {
  Lease(std::shared_ptr<Ledger> ledger_of_store, FeaturesPtr published, size_t counted_bytes)
      : ledger(std::move(ledger_of_store)), features(std::move(published)), bytes(counted_bytes) {}
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() {
    features.reset();  // The memory goes before its bytes are given to others.
    const std::lock_guard lock(ledger->mutex);
    ledger->counters.lingering_bytes -= bytes;
  }

  std::shared_ptr<Ledger> ledger;
  FeaturesPtr features;
  size_t bytes;
};

Result<std::unique_ptr<FeatureStore>> FeatureStore::make(const FeatureStoreLimits& limits) {
  if (limits.step_bytes_max > limits.bytes_max)
    return invalid_argument("features.bytes_max is " + format_bytes(limits.bytes_max) +
                            ", but the features of one step need up to " +
                            format_bytes(limits.step_bytes_max) + " (" +
                            std::to_string(limits.step_bytes_max) +
                            " bytes); raise it, or lower data.token_budget or "
                            "train.micro_batches_per_step");
  return std::unique_ptr<FeatureStore>(new FeatureStore(limits));
}

FeatureStore::FeatureStore(const FeatureStoreLimits& limits)
    : limits_(limits), ledger_(std::make_shared<Ledger>()) {}

FeatureStore::~FeatureStore() {
  std::vector<FeaturesPtr> dropped;
  const std::lock_guard lock(ledger_->mutex);
  while (!entries_.empty()) erase(entries_.begin(), dropped);
}

bool FeatureStore::in_open_step(MicroBatchId id) const {
  return id.epoch == open_first_.epoch && id.index >= open_first_.index &&
         id.index < open_first_.index + open_count_;
}

void FeatureStore::count_open(MicroBatchId id, size_t before, size_t now) {
  if (in_open_step(id)) open_bytes_ = open_bytes_ - before + now;
}

void FeatureStore::open_step(MicroBatchId first, int64_t count) {
  const std::lock_guard lock(ledger_->mutex);
  open_first_ = first;
  open_count_ = count;
  open_bytes_ = 0;
  for (auto entry = entries_.lower_bound(first);
       entry != entries_.end() && in_open_step(entry->first); ++entry) {
    open_bytes_ += entry->second.bytes;
  }
}

Status FeatureStore::try_reserve(MicroBatchId id, size_t bytes) {
  const std::lock_guard lock(ledger_->mutex);
  if (entries_.count(id) != 0)
    return failed_precondition("the features of " + describe(id) +
                               " are already reserved or published on this node");
  FeatureStoreCounters& counters = ledger_->counters;
  const size_t used = counters.bytes();
  size_t room = limits_.bytes_max - used;
  if (!in_open_step(id)) {
    const size_t later_max = limits_.bytes_max - limits_.step_bytes_max;
    const size_t later_used = used - open_bytes_;
    room = std::min(room, later_max - std::min(later_max, later_used));
  }
  if (bytes > room) {
    ++counters.refused_total;
    return resource_exhausted(describe(id) + " needs " + format_bytes(bytes) + " of features, " +
                              format_bytes(room) + " of features.bytes_max " +
                              format_bytes(limits_.bytes_max) + " are free for it now");
  }
  entries_[id].bytes = bytes;
  count_open(id, 0, bytes);
  counters.reserved_bytes += bytes;
  ledger_->check(limits_);
  return ok_status();
}

Status FeatureStore::publish(FeaturesPtr features) {
  PERCHERON_CHECK(features != nullptr, "features to publish");
  const MicroBatchId id = features->batch.id;
  const size_t bytes = features->bytes();
  const std::lock_guard lock(ledger_->mutex);
  const auto entry = entries_.find(id);
  if (entry == entries_.end() || entry->second.features != nullptr)
    return failed_precondition(
        "the features of " + describe(id) +
        (entry == entries_.end() ? " have no reservation" : " are published already"));
  if (bytes > entry->second.bytes)
    return resource_exhausted("the features of " + describe(id) + " have " + std::to_string(bytes) +
                              " bytes, but only " + std::to_string(entry->second.bytes) +
                              " were reserved");
  FeatureStoreCounters& counters = ledger_->counters;
  counters.reserved_bytes -= entry->second.bytes;
  counters.published_bytes += bytes;
  ++counters.published;
  ++counters.published_total;
  const Features* raw = features.get();
  const auto lease = std::make_shared<Lease>(ledger_, std::move(features), bytes);
  count_open(id, entry->second.bytes, bytes);
  entry->second = {bytes, FeaturesPtr(lease, raw)};
  ledger_->check(limits_);
  return ok_status();
}

FeaturesPtr FeatureStore::get(MicroBatchId id) const {
  const std::lock_guard lock(ledger_->mutex);
  const auto entry = entries_.find(id);
  return entry == entries_.end() ? nullptr : entry->second.features;
}

void FeatureStore::erase(std::map<MicroBatchId, Entry>::iterator entry,
                         std::vector<FeaturesPtr>& dropped) {
  FeatureStoreCounters& counters = ledger_->counters;
  const size_t bytes = entry->second.bytes;
  count_open(entry->first, bytes, 0);
  if (entry->second.features == nullptr) {
    counters.reserved_bytes -= bytes;
  } else {
    counters.published_bytes -= bytes;
    counters.lingering_bytes += bytes;
    --counters.published;
    // Dropped by the caller after the lock, which the last reader's end takes too.
    dropped.push_back(std::move(entry->second.features));
  }
  entries_.erase(entry);
}

void FeatureStore::release(MicroBatchId id) { release_step(id, 1); }

void FeatureStore::release_step(MicroBatchId first, int64_t count) {
  std::vector<FeaturesPtr> dropped;
  const std::lock_guard lock(ledger_->mutex);
  auto entry = entries_.lower_bound(first);
  while (entry != entries_.end() && entry->first.epoch == first.epoch &&
         entry->first.index < first.index + count) {
    erase(entry++, dropped);
  }
}

FeatureStoreCounters FeatureStore::counters() const {
  const std::lock_guard lock(ledger_->mutex);
  return ledger_->counters;
}

}  // namespace percheron
