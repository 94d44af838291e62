#include <map>
#include <optional>
#include <set>

#include "actors/actor_system.h"
#include "actors/policy/asking_targets.h"
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
        target_nodes_(parts.target_nodes()),
        homes_(target_nodes_, parts.trainer_nodes()),
        store_credits_(*parts.store),
        sequence_(parts.setup, parts.batches, parts.progress.step),
        asking_(parts.target_nodes()),
        policy_([this] { return sequence_.next(); },
                parts.credits ? *parts.credits : store_credits_, 0),
        held_out_left_(parts.batches->held_out_micro_batches()) {}

  void begin(int64_t step) {
    if (step < parts_.setup->steps.steps()) next_epoch_ = epoch_of(step);
    open(step);
    pump();
  }

  // It has nothing to do, or can be given the next beside the one that it has.
  void idle(int target) {
    if (retiring_.count(target) == 0 && lost_.count(target) == 0) {
      asking_.add(target, policy_.target_has_leases(target));
      newly_asking_ = target;
    }
    pump();
  }

  void lost(int target) {
    lost_.insert(target);
    retiring_.erase(target);
    asking_.remove(target);
    const auto count = static_cast<int64_t>(policy_.target_lost(target));
    if (count > 0) self_->send(peers_->supervisor, QueuedAgain{WorkerKind::kTarget, count});
    asking_.room_changed();
    pump();
  }

  void ready(int target) {
    lost_.erase(target);
    idle(target);
  }

  void added(const WorkerAdded& worker) {
    homes_.add(worker.kind, worker.node);
    if (worker.kind != WorkerKind::kTarget) return;
    target_nodes_.push_back(worker.node);
    asking_.add_target(worker.node);
  }

  // It ends what it has.
  void retired(const WorkerRetired& worker) {
    homes_.retire(worker.kind, worker.number);
    if (worker.kind == WorkerKind::kTrainer || lost_.count(worker.number) != 0) return;
    retiring_.insert(worker.number);
    asking_.remove(worker.number);
    if (!policy_.target_has_leases(worker.number)) let_go(worker.number);
  }

  void tell_held_out(int trainer) {
    for (const Ticket& ticket : held_out_) {
      self_->send(peers_->trainers[trainer], KeepHeldOut{ticket});
    }
  }

  void node_lost(int node) {
    const auto count = static_cast<int64_t>(policy_.leases_of_node_lost(node));
    if (count > 0) self_->send(peers_->supervisor, QueuedAgain{WorkerKind::kTarget, count});
    self_->send(peers_->mailbox, NodeLost{node});  // Behind the tickets that were put before.
    asking_.room_changed();
    pump();
  }

  void produce_again(const ProduceAgain& message) {
    if (message.rewinds != rewinds_) return;
    for (MicroBatchId id : message.ids) policy_.produce_again(id);
    const auto count = static_cast<int64_t>(message.ids.size());
    self_->send(peers_->supervisor, QueuedAgain{WorkerKind::kTarget, count});
    asking_.room_changed();
    pump();
  }

  void rewind(int64_t step) {
    if (held_out_left_ > 0) {
      held_out_left_ = parts_.batches->held_out_micro_batches();
      held_out_.clear();
    }
    sequence_ = WorkSequence(parts_.setup, parts_.batches, step,
                             held_out_left_ > 0 ? HeldOutWork::kFirst : HeldOutWork::kDone);
    policy_.restart();
    for (const auto& [id, bucket] : buckets_) parts_.activity->freed(bucket);
    buckets_.clear();
    self_->send(peers_->mailbox, Rewind{step, ++rewinds_});
    begin(step);
  }

  void produced(const Produced& message) {
    const Produce& work = message.work;
    const bool counts = policy_.produced(work.id, message.target, work.lease);
    const bool more = policy_.target_has_leases(message.target);
    parts_.activity->target_settled(message.target, message.tokens, message.samples,
                                    message.seconds, more);
    if (!more) asking_.has_nothing(message.target);
    // What a target says whose lease was taken away, by its loss or a rewind, no longer counts.
    if (!counts) return settled(message.target, more);
    self_->send(peers_->supervisor,
                TargetWork{message.target, work.id, false, message.tokens, message.seconds});
    if (!message.outcome.ok()) {
      lost_.insert(message.target);  // It gets no more.
      asking_.remove(message.target);
      self_->send(peers_->supervisor, Failed{"target " + std::to_string(message.target),
                                             message.outcome, WorkerKind::kTarget, message.target});
      return;
    }
    put(message);
    settled(message.target, more);
  }

  void freed(const Freed& message) {
    // Else the step is made again by now, and not to be forgotten.
    if (message.rewinds != rewinds_) return;
    const PlannedStep& range = message.range;
    for (int64_t i = range.first; i < range.first + range.count; ++i) {
      forget({range.epoch, i});
    }
    parts_.exchange->step_freed(range);
    open(range.step + 1);
    pump();
  }

 private:
  // A target has one micro-batch less; it asks for the next itself.
  void settled(int target, bool has_more) {
    if (!has_more && retiring_.count(target) != 0) return let_go(target);
    pump();
  }

  void let_go(int target) {
    retiring_.erase(target);
    lost_.insert(target);
    self_->send(peers_->supervisor, WorkerLost{WorkerKind::kTarget, target});
    pump();
  }

  void put(const Produced& message) {
    const Produce& work = message.work;
    const Ticket ticket{
        work.id,         work.step,  node_of(message.target), homes_.of_target(message.target),
        work.generation, work.bytes, message.region_bytes,    message.crc32c,
        message.target};
    if (work.id.epoch != kHeldOutEpoch) {
      self_->send(peers_->mailbox, PutTicket{ticket});
      return;
    }
    forget(work.id);
    if (parts_.exchange->held_out_is_elsewhere()) {
      held_out_.push_back(ticket);
      for (const caf::actor& trainer : peers_->trainers.all()) {
        self_->send(trainer, KeepHeldOut{ticket});
      }
    }
    if (--held_out_left_ == 0) self_->send(peers_->supervisor, EpochExhausted{kHeldOutEpoch});
  }

  int node_of(int target) const { return target_nodes_[static_cast<size_t>(target)]; }

  int64_t epoch_of(int64_t step) const { return parts_.setup->steps.at(step).epoch; }

  void open(int64_t step) {
    policy_.set_open_step(step);
    asking_.room_changed();  // What the step before held is free.
    if (step >= parts_.setup->steps.steps()) return;
    const PlannedStep range = parts_.setup->steps.at(step);
    parts_.store->open_step({range.epoch, range.first}, range.count);
  }

  void pump() {
    while (const auto next = asking_.next(policy_, 0)) {
      const auto& [target, production] = *next;
      const WorkUnit& unit = production.unit;
      self_->send(peers_->supervisor, TargetWork{target, unit.id, true, 0, 0});
      parts_.activity->target_leased(target, new_bucket(unit.id));
      self_->send(peers_->targets[target],
                  Produce{unit.id, unit.step, production.lease, production.generation, unit.bytes});
    }
    tell_idle();
    report_exhausted_epochs();
  }

  // Who waits, and why, where that is news.
  void tell_idle() {
    const Occupation why = policy_.out_of_work() ? Occupation::kWork : Occupation::kRoom;
    if (why != told_why_) {
      for (const int target : asking_.all()) parts_.activity->target_waits(target, why);
    } else if (newly_asking_ && asking_.contains(*newly_asking_)) {
      parts_.activity->target_waits(*newly_asking_, why);
    }
    told_why_ = why;
    newly_asking_.reset();
  }

  // None where it was handed out before.
  std::optional<int64_t> new_bucket(MicroBatchId id) {
    const auto [known, added] = buckets_.try_emplace(id, 0);
    if (!added) return std::nullopt;
    known->second = parts_.batches->bucket_bound(id);
    return known->second;
  }

  void forget(MicroBatchId id) {
    policy_.freed(id);
    const auto bucket = buckets_.find(id);
    if (bucket == buckets_.end()) return;
    parts_.activity->freed(bucket->second);
    buckets_.erase(bucket);
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
  std::vector<int> target_nodes_;
  Homes homes_;
  StoreCredits store_credits_;
  WorkSequence sequence_;
  AskingTargets asking_;
  SamplerPolicy policy_;
  std::set<int> lost_, retiring_;            // targets
  std::optional<int> newly_asking_;          // a target of which nobody was told
  Occupation told_why_ = Occupation::kRoom;  // the others wait
  std::map<MicroBatchId, int64_t> buckets_;  // of what is handed out and not freed
  int64_t held_out_left_;
  int64_t rewinds_ = 0;
  std::vector<Ticket> held_out_;  // where trainers fetch these features for themselves
  int64_t next_epoch_ = -1;       // the first whose exhaustion is not reported; -1 before the begin
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
        [sampler](const Freed& message) { sampler->freed(message); },
        [sampler](const WorkerLost& message) { sampler->lost(message.number); },
        [sampler](const WorkerReady& message) {
          if (message.kind == WorkerKind::kTarget) {
            sampler->ready(message.number);
          } else {
            sampler->tell_held_out(message.number);
          }
        },
        [sampler](const WorkerAdded& message) { sampler->added(message); },
        [sampler](const WorkerRetired& message) { sampler->retired(message); },
        [sampler](const NodeLost& message) { sampler->node_lost(message.node); },
        [sampler](const ProduceAgain& message) { sampler->produce_again(message); },
        [sampler](const Rewind& message) { sampler->rewind(message.step); },
    };
  });
}

}  // namespace percheron
