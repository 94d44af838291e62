#pragma once

#include <functional>

#include "actors/held_out_features.h"
#include "actors/policy/step_plan.h"
#include "actors/policy/ticket.h"
#include "base/status.h"
#include "data/feature_store.h"

namespace percheron {

struct Produced;

/// Where targets leave features and trainers find them: in one process a store, in a service the
/// node's daemon.
class FeatureExchange {
 public:
  using Done = std::function<void(Result<FeaturesPtr>)>;

  virtual ~FeatureExchange() = default;
  /// Leaves the features of `produced.work`; says in `produced` what others need to find them. Any
  /// thread.
  virtual Status publish(FeaturesPtr features, Produced& produced) = 0;
  /// Finds the features of a ticket and calls `done` with them, now or later, on any thread.
  virtual void fetch(const Ticket& ticket, Done done) = 0;
  /// Whether trainers must fetch held-out features for themselves, to keep them.
  virtual bool held_out_is_elsewhere() const = 0;
  /// The features of a committed step are of no more use. The local store has forgotten them by
  /// its credits already.
  virtual void step_freed(const PlannedStep&) {}
};

/// Within one process.
class LocalFeatures final : public FeatureExchange {
 public:
  /// Both are borrowed.
  LocalFeatures(FeatureStore& store, HeldOutFeatures& held_out)
      : store_(store), held_out_(held_out) {}

  Status publish(FeaturesPtr features, Produced& produced) override;
  /// Calls `done` before it returns.
  void fetch(const Ticket& ticket, Done done) override;
  bool held_out_is_elsewhere() const override { return false; }

 private:
  FeatureStore& store_;
  HeldOutFeatures& held_out_;
};

}  // namespace percheron
