// Which trainers hold more than they compute, so that features are on their way meanwhile.

#include "actors/policy/mailbox_policy.h"
#include "base/check.h"

namespace percheron {

void MailboxPolicy::look_ahead(int trainer) {
  const auto place = places_.find(trainer);
  if (!held_.looks_ahead() || place == places_.end()) return;
  ahead_.join(place->second);
  look_at(place->second.queue);
}

std::optional<int> MailboxPolicy::home_to_spare() const {
  if (fullest_.empty()) return std::nullopt;
  const int home = fullest_.largest();
  const int64_t trainers = served_at_.count(home) == 0 ? 0 : served_at_.at(home);
  return queues_.at(home).open > trainers ? std::optional(home) : std::nullopt;
}

const WaitingLine::Waiter* MailboxPolicy::next_ahead() const {
  if (!ahead_ready_.empty()) return ahead_.first_at(*ahead_ready_.begin());
  return steals_work() && !ahead_.empty() && home_to_spare() ? &ahead_.first() : nullptr;
}

bool MailboxPolicy::may_hold(const WaitingLine::Waiter& waiter, const Ticket& ticket,
                             int64_t now_ns) const {
  const int trainer = waiter.trainer;
  // It could not read this one before, and computes nothing else until it has.
  if (serves_in_order() && held_.is_before_all(trainer, ticket.id)) return true;
  if (!held_.has_room(trainer, ticket.bytes)) return false;
  if (!steals_work()) return true;
  // The nearer the end, the less is promised to anyone: what is left is for whoever is free first.
  const auto ahead = static_cast<int64_t>(held_.count(trainer));
  if (left_of_step() <= ahead * static_cast<int64_t>(members_.size())) return false;
  // What lies at home is there at once: one of these is enough.
  if (ahead > 1 && ticket.home == waiter.home) return false;
  return !pace_.too_late(trainer, now_ns);
}

std::optional<MailboxPolicy::HandOut> MailboxPolicy::hand_out_ahead(int64_t now_ns) {
  if (steals_work()) {
    const bool last = left_of_step() <= static_cast<int64_t>(members_.size());
    if (last || !pace_.all_known()) return std::nullopt;
  }
  while (const WaitingLine::Waiter* waiter = next_ahead()) {
    const WaitingLine::Waiter chosen = *waiter;
    ++visited_;
    // What it may not hold now it may once it has computed something.
    ahead_.leave(chosen.trainer);
    const std::optional<MicroBatchId> id = pick(chosen.trainer, chosen.home);
    PERCHERON_CHECK(id, "who looks ahead has something to see");
    const bool may = may_hold(chosen, entries_.at(*id).ticket, now_ns);
    std::optional<Work> work;
    if (may) {
      work = take(chosen.trainer, chosen.home, now_ns);
      look_ahead(chosen.trainer);
    }
    look_at(chosen.queue);
    if (work) return HandOut{chosen.trainer, *work};
  }
  return std::nullopt;
}

}  // namespace percheron
