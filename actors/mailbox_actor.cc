#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "actors/actor_system.h"
#include "actors/policy/mailbox_policy.h"

namespace percheron {
namespace {

std::vector<int> trainer_numbers(const RunParts& parts) {
  std::vector<int> numbers(parts.trainers.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

class Mailbox {
 public:
  Mailbox(caf::event_based_actor* self, const RunParts& parts, PeersPtr peers)
      : self_(self),
        activity_(*parts.activity),
        clock_(*parts.clock),
        peers_(std::move(peers)),
        homes_(parts.target_nodes(), parts.trainer_nodes()),
        features_are_here_(!parts.credits),
        sums_begin_early_(parts.device_groups != nullptr),
        policy_(parts.setup->assignment, trainer_numbers(parts), 0,
                parts.setup->config.mailbox().prefetch_bytes()) {}

  void open(const PlannedStep& range) {
    policy_.open_step(range);
    pump();
  }

  void put(const Ticket& ticket) {
    policy_.put(ticket);
    pump();
  }

  void take(int trainer) {
    if (!policy_.holds_any(trainer)) activity_.trainer_waits(trainer);
    policy_.wait(trainer, homes_.of_trainer(trainer));
    pump();
  }

  void regroup(const Regroup& message) {
    const std::set<int> before(policy_.members().begin(), policy_.members().end());
    const int64_t queued_before = policy_.queued_again();
    if (message.membership > policy_.membership()) {  // Else the first group, which is known.
      activity_.trainers_hold_nothing();
      produce_again(policy_.change_members({message.members.begin(), message.members.end()},
                                           message.membership));
    }
    // Who was no member had no place in line when it asked for one.
    for (int trainer : message.members) {
      if (before.count(trainer) == 0) policy_.wait(trainer, homes_.of_trainer(trainer));
    }
    const int64_t again = policy_.queued_again() - queued_before;
    if (again > 0) self_->send(peers_->supervisor, QueuedAgain{WorkerKind::kTrainer, again});
    pump();
  }

  void added(const WorkerAdded& worker) { homes_.add(worker.kind, worker.node); }
  void retired(const WorkerRetired& worker) { homes_.retire(worker.kind, worker.number); }

  void node_lost(int node) {
    produce_again(policy_.node_lost(node));
    tell();
  }

  void unreadable(const Unreadable& message) {
    const MicroBatchId id = message.id;
    // Of no account where the lease was taken away: others have computed it, and it was freed.
    const std::optional<uint64_t> bytes =
        policy_.unreadable(id, message.trainer, message.lease, clock_.monotonic_ns());
    if (!bytes) return;
    activity_.trainer_gave_up(message.trainer, policy_.holds_any(message.trainer), *bytes);
    if (features_are_here_) {
      const Status lost = internal_error(fmt::format(
          "the features of micro-batch ({}, {}) are not in the store", id.epoch, id.index));
      self_->send(peers_->supervisor,
                  Failed{"the mailbox", Outcome::of(lost), WorkerKind::kTrainer, message.trainer});
      return;
    }
    self_->send(peers_->supervisor, settled(message.trainer, id));
    produce_again({id});
    pump();
  }

  void rewind(const Rewind& message) {
    activity_.trainers_hold_nothing();
    policy_.restart();
    tell();
    rewinds_ = message.rewinds;
    self_->send(peers_->supervisor, message);
  }

  void computed(const Computed& message) {
    const bool counts =
        policy_.computed(message.id, message.trainer, message.lease, clock_.monotonic_ns());
    if (counts) {
      activity_.trainer_settled(message.trainer, message.tokens, message.samples, message.seconds,
                                message.fetch_seconds);
    } else {
      activity_.trainer_worked_in_vain(message.trainer, message.tokens, message.samples);
    }
    TrainerWork work = settled(message.trainer, message.id);
    work.tokens = message.tokens;
    work.samples = message.samples;
    work.seconds = message.seconds;
    if (!counts) work.membership = TrainerWork::kNoMembership;
    self_->send(peers_->supervisor, work);
    if (counts && policy_.step_computed()) {
      self_->send(peers_->supervisor, StepComputed{policy_.open()->step, policy_.membership()});
    }
    pump();
  }

  void commit(int64_t step) {
    PERCHERON_CHECK(policy_.open() && policy_.open()->step == step,
                    "the supervisor commits the open step");
    const PlannedStep range = *policy_.open();
    policy_.commit_step();
    self_->send(peers_->sampler, Freed{range, rewinds_});
    tell();
  }

 private:
  TrainerWork settled(int trainer, MicroBatchId id) const {
    return {trainer, id, false, 0, 0, 0, policy_.steals(), policy_.membership()};
  }

  void produce_again(std::vector<MicroBatchId> ids) {
    if (!ids.empty()) self_->send(peers_->sampler, ProduceAgain{std::move(ids), rewinds_});
  }

  void pump() {
    while (const auto next = policy_.hand_out(clock_.monotonic_ns())) {
      const auto& [trainer, work] = *next;
      self_->send(peers_->supervisor,
                  TrainerWork{trainer, work.ticket.id, true, 0, 0, 0, policy_.steals(),
                              policy_.membership(), work.ahead});
      self_->send(peers_->trainers[trainer],
                  TakeTicket{work.ticket, work.lease, policy_.membership(), policy_.in_order()});
      const auto victim = work.stolen ? std::optional(work.ticket.home) : std::nullopt;
      if (work.ahead) {
        activity_.trainer_leased_ahead(trainer, victim, work.ticket.bytes);
      } else {
        activity_.trainer_leased(trainer, victim);
      }
    }
    if (sums_begin_early_) tell_last_handed_out();
    tell();
  }

  void tell_last_handed_out() {
    const auto last = policy_.take_last_handed_out();
    if (!last) return;
    for (int trainer : policy_.members()) {
      self_->send(peers_->trainers[trainer],
                  LastHandedOut{last->step, policy_.membership(), last->group});
    }
  }

  void tell() {
    changed_.homes.clear();
    for (const auto& [home, queue] : policy_.take_changed_queues()) {
      changed_.homes.push_back({home, {queue.tickets, queue.bytes}});
    }
    changed_.queued_later = policy_.queued_later();
    changed_.features_late = policy_.tickets_missing();
    activity_.mailbox(changed_);
  }

  caf::event_based_actor* self_;
  RunActivity& activity_;
  const Clock& clock_;
  PeersPtr peers_;
  Homes homes_;
  const bool features_are_here_;  // all of them, so that none can be lost
  const bool sums_begin_early_;   // the members sum between their devices
  MailboxPolicy policy_;
  MailboxChange changed_;  // for tell(), which is called for every message
  int64_t rewinds_ = 0;
};

}  // namespace

caf::actor start_mailbox(caf::actor_system& system, RunParts& parts, PeersPtr peers) {
  return system.spawn([&parts, peers](caf::event_based_actor* self) -> caf::behavior {
    log_unexpected_messages(self, "the mailbox");
    const auto mailbox = std::make_shared<Mailbox>(self, parts, peers);
    return {
        [mailbox](const OpenStep& message) { mailbox->open(message.range); },
        [mailbox](const PutTicket& message) { mailbox->put(message.ticket); },
        [mailbox](const Take& message) { mailbox->take(message.trainer); },
        [mailbox](const Computed& message) { mailbox->computed(message); },
        [mailbox](const Commit& message) { mailbox->commit(message.step); },
        [mailbox](const Regroup& message) { mailbox->regroup(message); },
        [mailbox](const WorkerAdded& message) { mailbox->added(message); },
        [mailbox](const WorkerRetired& message) { mailbox->retired(message); },
        [mailbox](const NodeLost& message) { mailbox->node_lost(message.node); },
        [mailbox](const Unreadable& message) { mailbox->unreadable(message); },
        [mailbox](const Rewind& message) { mailbox->rewind(message); },
    };
  });
}

}  // namespace percheron
