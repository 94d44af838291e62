#include <set>

#include "actors/actor_system.h"
#include "actors/policy/sampler_policy.h"

namespace percheron {
namespace {

// Credits of the one node of this process: its store says what fits.
class StoreCredits final : public CreditSource {
 public:
  explicit StoreCredits(FeatureStore& store) : store_(store) {}
  bool try_grant(int, const WorkUnit& unit, int64_t) override {
    if (unit.id.epoch == kHeldOutEpoch) return true;  // Kept apart; its size was checked at start.
    return store_.try_reserve(unit.id, unit.bytes).ok();
  }
  void release(MicroBatchId id) override { store_.release(id); }
  void node_lost(int) override {}

 private:
  FeatureStore& store_;
};

class Sampler {
 public:
  Sampler(caf::event_based_actor* self, RunParts& parts, PeersPtr peers)
      : self_(self),
        parts_(parts),
        peers_(std::move(peers)),
        credits_(*parts.store),
        sequence_(parts.setup, parts.batches, parts.progress.step),
        policy_([this] { return sequence_.next(); }, credits_, 0),
        held_out_left_(parts.batches->held_out_micro_batches()) {}

  void begin(int64_t step) {
    if (step < parts_.setup->steps.steps()) next_epoch_ = epoch_of(step);
    open(step);
    pump();
  }

  void idle(int target) {
    idle_.insert(target);
    pump();
  }

  void produced(const Produced& message) {
    const Produce& work = message.work;
    self_->send(peers_->supervisor,
                TargetWork{message.target, work.id, false, message.tokens, message.seconds});
    if (!message.outcome.ok()) {
      self_->send(peers_->supervisor,
                  Failed{"target " + std::to_string(message.target), message.outcome});
      return;
    }
    if (policy_.produced(work.id, message.target, work.lease)) {
      if (work.id.epoch == kHeldOutEpoch) {
        policy_.freed(work.id);
        if (--held_out_left_ == 0) {
          self_->send(peers_->supervisor, EpochExhausted{kHeldOutEpoch});
        }
      } else {
        const int home = message.target % static_cast<int>(peers_->trainers.size());
        self_->send(peers_->mailbox,
                    PutTicket{Ticket{work.id, work.step, home, work.generation, work.bytes}});
      }
    }
    idle(message.target);
  }

  void freed(const PlannedStep& range) {
    for (int64_t i = range.first; i < range.first + range.count; ++i) {
      policy_.freed({range.epoch, i});
    }
    open(range.step + 1);
    pump();
  }

 private:
  int64_t epoch_of(int64_t step) const { return parts_.setup->steps.at(step).epoch; }

  void open(int64_t step) {
    policy_.set_open_step(step);
    if (step >= parts_.setup->steps.steps()) return;
    const PlannedStep range = parts_.setup->steps.at(step);
    parts_.store->open_step({range.epoch, range.first}, range.count);
  }

  void pump() {
    while (!idle_.empty()) {
      const int target = *idle_.begin();
      const auto production = policy_.next(target, 0, 0);
      if (!production) break;
      idle_.erase(target);
      const WorkUnit& unit = production->unit;
      self_->send(peers_->supervisor, TargetWork{target, unit.id, true, 0, 0});
      self_->send(
          peers_->targets[static_cast<size_t>(target)],
          Produce{unit.id, unit.step, production->lease, production->generation, unit.bytes});
    }
    report_exhausted_epochs();
  }

  void report_exhausted_epochs() {
    const StepPlan& steps = parts_.setup->steps;
    if (parts_.progress.step >= steps.steps()) return;
    const int64_t end = epoch_of(steps.steps() - 1) + 1;
    while (next_epoch_ >= 0 && next_epoch_ < end && policy_.epoch_exhausted(next_epoch_)) {
      self_->send(peers_->supervisor, EpochExhausted{next_epoch_++});
    }
  }

  caf::event_based_actor* self_;
  RunParts& parts_;
  PeersPtr peers_;
  StoreCredits credits_;
  WorkSequence sequence_;
  SamplerPolicy policy_;
  std::set<int> idle_;
  int64_t held_out_left_;
  int64_t next_epoch_ = -1;  // the first whose exhaustion is not reported; -1 before the begin
};

}  // namespace

caf::actor start_sampler(caf::actor_system& system, RunParts& parts, PeersPtr peers) {
  return system.spawn([&parts, peers](caf::event_based_actor* self) -> caf::behavior {
    log_unexpected_messages(self, "the sampler");
    const auto sampler = std::make_shared<Sampler>(self, parts, peers);
    return {
        [sampler](const Begin& message) { sampler->begin(message.step); },
        [sampler](const TargetIdle& message) { sampler->idle(message.target); },
        [sampler](const Produced& message) { sampler->produced(message); },
        [sampler](const Freed& message) { sampler->freed(message.range); },
    };
  });
}

}  // namespace percheron
