#include <deque>
#include <numeric>

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
        peers_(std::move(peers)),
        policy_(parts.setup->assignment, trainer_numbers(parts), 0) {}

  void open(const PlannedStep& range) {
    policy_.open_step(range);
    pump();
  }

  void put(const Ticket& ticket) {
    policy_.put(ticket);
    pump();
  }

  void take(int trainer) {
    idle_.push_back(trainer);
    pump();
  }

  void computed(const Computed& message) {
    const bool counts = policy_.computed(message.id, message.trainer, message.lease);
    self_->send(peers_->supervisor,
                TrainerWork{message.trainer, message.id, false, message.tokens, message.samples,
                            message.seconds, policy_.steals()});
    if (counts && policy_.step_computed()) {
      self_->send(peers_->supervisor, StepComputed{policy_.open()->step, policy_.membership()});
    }
  }

  void commit(int64_t step) {
    PERCHERON_CHECK(policy_.open() && policy_.open()->step == step,
                    "the supervisor commits the open step");
    const PlannedStep range = *policy_.open();
    policy_.commit_step();
    self_->send(peers_->sampler, Freed{range});
  }

 private:
  void pump() {
    for (auto trainer = idle_.begin(); trainer != idle_.end();) {
      const std::optional<Work> work = policy_.take(*trainer, *trainer, 0);
      if (!work) {
        ++trainer;
        continue;
      }
      self_->send(peers_->supervisor,
                  TrainerWork{*trainer, work->ticket.id, true, 0, 0, 0, policy_.steals()});
      self_->send(peers_->trainers[static_cast<size_t>(*trainer)],
                  TakeTicket{work->ticket, work->lease});
      trainer = idle_.erase(trainer);
    }
  }

  caf::event_based_actor* self_;
  PeersPtr peers_;
  MailboxPolicy policy_;
  std::deque<int> idle_;  // trainers that wait, longest first
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
    };
  });
}

}  // namespace percheron
