#include "actors/policy/sampler_policy.h"

#include "base/check.h"

namespace percheron {

SamplerPolicy::SamplerPolicy(std::function<std::optional<WorkUnit>()> next_unit,
                             CreditSource& credits, int64_t lease_ttl_ns)
    : next_unit_(std::move(next_unit)), credits_(credits), leases_(lease_ttl_ns) {
  peek();
}

const WorkUnit* SamplerPolicy::peek() {
  if (!peeked_ && !ended_) {
    peeked_ = next_unit_();
    ended_ = !peeked_;
  }
  return peeked_ ? &*peeked_ : nullptr;
}

const WorkUnit* SamplerPolicy::upcoming() {
  return again_queue_.empty() ? peek() : &flights_.at(*again_queue_.begin()).unit;
}

std::optional<Production> SamplerPolicy::next(int target, int node, int64_t now_ns) {
  const bool again = !again_queue_.empty();
  const WorkUnit* unit = upcoming();
  if (!unit || !credits_.try_grant(node, *unit, open_step_)) return std::nullopt;
  const MicroBatchId id = unit->id;
  if (again) {
    again_queue_.erase(id);
  } else {
    flights_[id].unit = *unit;
    peeked_.reset();
    peek();
  }
  Flight& flight = flights_.at(id);
  flight.node = node;
  return Production{flight.unit, leases_.grant(id, target, now_ns), flight.leases++};
}

bool SamplerPolicy::produced(MicroBatchId id, int target, int64_t lease) {
  if (leases_.settle(id, target, lease)) return true;
  ++stale_;
  return false;
}

void SamplerPolicy::forget(MicroBatchId id) {
  credits_.release(id);
  flights_.erase(id);
}

void SamplerPolicy::requeue(MicroBatchId id) {
  credits_.release(id);
  again_queue_.insert(id);
  ++again_;
}

size_t SamplerPolicy::target_lost(int target) {
  const std::vector<MicroBatchId> dropped = leases_.drop_owner(target);
  for (MicroBatchId id : dropped) requeue(id);
  return dropped.size();
}

size_t SamplerPolicy::expire_leases(int64_t now_ns) {
  const std::vector<MicroBatchId> expired = leases_.expire(now_ns);
  for (MicroBatchId id : expired) requeue(id);
  return expired.size();
}

size_t SamplerPolicy::node_lost(int node) {
  size_t count = 0;
  for (const auto& [id, flight] : flights_) {
    if (flight.node != node || again_queue_.count(id) != 0) continue;
    if (const auto owner = leases_.owner_of(id)) leases_.drop_owner(*owner);
    requeue(id);
    ++count;
  }
  credits_.node_lost(node);
  return count;
}

size_t SamplerPolicy::leases_of_node_lost(int node) {
  size_t count = 0;
  for (const auto& [id, flight] : flights_) {
    const auto owner = leases_.owner_of(id);
    if (flight.node != node || !owner) continue;
    count += target_lost(*owner);
  }
  credits_.node_lost(node);
  return count;
}

void SamplerPolicy::restart() {
  for (const auto& [id, flight] : flights_) credits_.release(id);
  flights_.clear();
  again_queue_.clear();
  leases_.clear();
  peeked_.reset();
  ended_ = false;
}

void SamplerPolicy::produce_again(MicroBatchId id) {
  if (flights_.count(id) == 0) return;
  if (!leases_.owner_of(id) && again_queue_.count(id) == 0) requeue(id);
}

bool SamplerPolicy::exhausted() const {
  return ended_ && again_queue_.empty() && leases_.outstanding() == 0;
}

bool SamplerPolicy::epoch_exhausted(int64_t epoch) const {
  if (peeked_ && peeked_->id.epoch <= epoch) return false;
  if (!again_queue_.empty() && again_queue_.begin()->epoch <= epoch) return false;
  const std::optional<MicroBatchId> leased = leases_.oldest();
  return !leased || leased->epoch > epoch;
}

}  // namespace percheron
