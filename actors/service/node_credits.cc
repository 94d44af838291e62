#include "actors/service/node_credits.h"

#include <algorithm>

namespace percheron {
namespace {

// A daemon keeps each micro-batch as a file of its own, and may have some thousands open.
constexpr int64_t kMicroBatchesAhead = 4096;

}  // namespace

NodeCredits::NodeCredits(uint64_t bytes_max)
    : bytes_max_(bytes_max), credits_({}, kMicroBatchesAhead) {}

bool NodeCredits::try_grant(int node, const WorkUnit& unit, int64_t open_step) {
  know(node);
  const bool granted = unit.id.epoch == kHeldOutEpoch || credits_.try_grant(node, unit, open_step);
  count();
  return granted;
}

void NodeCredits::release(MicroBatchId id) {
  credits_.release(id);
  count();
}

void NodeCredits::node_lost(int node) {
  know(node);
  credits_.node_lost(node);
  count();
}

// Nodes may come while the run goes on.
void NodeCredits::know(int node) {
  while (credits_.nodes() <= node) {
    credits_.add_node(bytes_max_);
    granted_->bytes_max = static_cast<uint64_t>(credits_.nodes()) * bytes_max_;
  }
}

void NodeCredits::count() {
  uint64_t bytes = 0;
  for (int node = 0; node < credits_.nodes(); ++node) bytes += credits_.in_use(node);
  granted_->bytes = bytes;
  granted_->peak = std::max<uint64_t>(granted_->peak, bytes);
}

}  // namespace percheron
