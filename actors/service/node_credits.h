#pragma once

#include <functional>
#include <memory>

#include "actors/feature_exchange.h"
#include "actors/policy/credits.h"
#include "actors/run_parts.h"
#include "base/status.h"

namespace percheron {

/// The features of a run are in the stores of daemons; its supervisor says when they are freed.
class ReleasedFeatures final : public FeatureExchange {
 public:
  using Release = std::function<void(const PlannedStep&)>;
  explicit ReleasedFeatures(Release release) : release_(std::move(release)) {}

  Status publish(FeaturesPtr, Produced&) override {
    return internal_error("a supervisor makes no features");
  }
  void fetch(const Ticket&, Done done) override {
    done(internal_error("a supervisor uses no features"));
  }
  bool held_out_is_elsewhere() const override { return true; }
  void step_freed(const PlannedStep& step) override { release_(step); }

 private:
  const Release release_;
};

/// Credits of the stores of several nodes, of `bytes_max` each. Held-out features are kept apart:
/// their size was checked at the start.
class NodeCredits final : public CreditSource {
 public:
  explicit NodeCredits(uint64_t bytes_max);

  std::shared_ptr<const GrantedBytes> granted() const { return granted_; }

  bool try_grant(int node, const WorkUnit& unit, int64_t open_step) override;
  void release(MicroBatchId id) override;
  void node_lost(int node) override;

 private:
  void know(int node);
  void count();

  const uint64_t bytes_max_;
  Credits credits_;
  const std::shared_ptr<GrantedBytes> granted_ = std::make_shared<GrantedBytes>();
};

}  // namespace percheron
