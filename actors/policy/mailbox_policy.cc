#include "actors/policy/mailbox_policy.h"

#include <algorithm>

#include "base/check.h"

namespace percheron {

MailboxPolicy::MailboxPolicy(Assignment assignment, std::vector<int> trainers, int64_t lease_ttl_ns)
    : assignment_(assignment), members_(std::move(trainers)), leases_(lease_ttl_ns) {}

void MailboxPolicy::open_step(const PlannedStep& range) {
  PERCHERON_CHECK(!open_, "one step is open at a time");
  open_ = range;
  committed_before_ = {range.epoch, range.first};
}

MailboxPolicy::Put MailboxPolicy::put(const Ticket& ticket) {
  const auto known = entries_.find(ticket.id);
  const bool wanted = known == entries_.end() || known->second.state == State::kGone;
  if (ticket.id < committed_before_ || !wanted) {
    ++duplicates_;
    return Put::kDuplicate;
  }
  Entry& entry = entries_[ticket.id];
  entry.ticket = ticket;
  entry.features_gone = false;
  queue(entry);
  return Put::kQueued;
}

void MailboxPolicy::queue(Entry& entry) {
  entry.state = State::kQueued;
  homes_[entry.ticket.home].insert(entry.ticket.id);
  home_bytes_[entry.ticket.home] += entry.ticket.bytes;
}

std::optional<MicroBatchId> MailboxPolicy::pick_fixed(int trainer) const {
  const auto member = std::find(members_.begin(), members_.end(), trainer);
  if (member == members_.end()) return std::nullopt;
  const int64_t rank = member - members_.begin();
  const int64_t size = static_cast<int64_t>(members_.size());
  for (int64_t index = open_->first; index < open_->first + open_->count; ++index) {
    if (index % size != rank) continue;
    const auto entry = entries_.find({open_->epoch, index});
    if (entry == entries_.end() || entry->second.state == State::kGone) return std::nullopt;
    if (entry->second.state == State::kQueued) return entry->first;
    if (entry->second.state == State::kLeased) return std::nullopt;  // its own, in order
  }
  return std::nullopt;
}

int64_t MailboxPolicy::open_tickets(const Home& home) const {
  // Nothing is older than the open step, so its tickets come first.
  const auto later = std::find_if_not(
      home.begin(), home.end(), [this](const MicroBatchId& id) { return open_->contains(id); });
  return std::distance(home.begin(), later);
}

std::optional<MicroBatchId> MailboxPolicy::pick_stealing(int home) const {
  const auto own = homes_.find(home);
  if (own != homes_.end() && !own->second.empty() && open_->contains(*own->second.begin())) {
    return *own->second.begin();
  }
  const Home* fullest = nullptr;
  int64_t most = 0;
  for (const auto& [other, tickets] : homes_) {
    const int64_t count = open_tickets(tickets);
    if (count > most) {
      most = count;
      fullest = &tickets;
    }
  }
  if (!fullest) return std::nullopt;
  return *fullest->begin();
}

std::optional<Work> MailboxPolicy::take(int trainer, int home, int64_t now_ns) {
  if (!open_) return std::nullopt;
  if (std::find(members_.begin(), members_.end(), trainer) == members_.end()) return std::nullopt;
  const std::optional<MicroBatchId> id =
      serves_in_order() ? pick_fixed(trainer) : pick_stealing(home);
  if (!id) return std::nullopt;
  Entry& entry = entries_.at(*id);
  homes_.at(entry.ticket.home).erase(*id);
  home_bytes_.at(entry.ticket.home) -= entry.ticket.bytes;
  entry.state = State::kLeased;
  const bool stolen = entry.ticket.home != home;
  steals_ += stolen ? 1 : 0;
  return Work{entry.ticket, leases_.grant(*id, trainer, now_ns), stolen};
}

bool MailboxPolicy::computed(MicroBatchId id, int trainer, int64_t lease) {
  if (!leases_.settle(id, trainer, lease)) {
    ++stale_;
    return false;
  }
  entries_.at(id).state = State::kComputed;
  return true;
}

bool MailboxPolicy::step_computed() const {
  if (!open_) return false;
  for (int64_t index = open_->first; index < open_->first + open_->count; ++index) {
    const auto entry = entries_.find({open_->epoch, index});
    if (entry == entries_.end() || entry->second.state != State::kComputed) return false;
  }
  return true;
}

std::vector<Ticket> MailboxPolicy::commit_step() {
  PERCHERON_CHECK(step_computed(), "only a computed step is committed");
  std::vector<Ticket> freed;
  for (int64_t index = open_->first; index < open_->first + open_->count; ++index) {
    const auto entry = entries_.find({open_->epoch, index});
    if (!entry->second.features_gone) freed.push_back(entry->second.ticket);
    entries_.erase(entry);
  }
  committed_before_ = {open_->epoch, open_->first + open_->count};
  open_.reset();
  return freed;
}

std::vector<MicroBatchId> MailboxPolicy::trainer_lost(int trainer) {
  std::vector<int> others = members_;
  if (std::erase(others, trainer) == 0) return {};
  return change_members(std::move(others), membership_ + 1);
}

std::vector<MicroBatchId> MailboxPolicy::change_members(std::vector<int> members,
                                                        int64_t membership) {
  PERCHERON_CHECK(membership > membership_, "memberships grow");
  members_ = std::move(members);
  membership_ = membership;
  leases_.clear();  // All drop their partial sums, so what they hold counts no more either.
  std::vector<MicroBatchId> again;
  for (auto& [id, entry] : entries_) {
    if (entry.state != State::kLeased && entry.state != State::kComputed) continue;
    ++queued_again_;
    if (entry.features_gone) {
      entry.state = State::kGone;
      again.push_back(id);
    } else {
      queue(entry);
    }
  }
  return again;
}

std::vector<MicroBatchId> MailboxPolicy::node_lost(int node) {
  std::vector<MicroBatchId> again;
  for (auto& [id, entry] : entries_) {
    if (entry.ticket.node != node || entry.state == State::kGone || entry.features_gone) continue;
    // What is leased or computed already was read; only a lost trainer would ask for it again.
    entry.features_gone = true;
    if (entry.state == State::kQueued) {
      homes_.at(entry.ticket.home).erase(id);
      home_bytes_.at(entry.ticket.home) -= entry.ticket.bytes;
      entry.state = State::kGone;
      again.push_back(id);
    }
  }
  return again;
}

bool MailboxPolicy::unreadable(MicroBatchId id, int trainer, int64_t lease) {
  if (!leases_.settle(id, trainer, lease)) {
    ++stale_;
    return false;
  }
  entries_.at(id).state = State::kGone;
  return true;
}

void MailboxPolicy::restart() {
  leases_.clear();
  entries_.clear();
  homes_.clear();
  home_bytes_.clear();
  open_.reset();
  committed_before_ = {0, 0};
}

size_t MailboxPolicy::queued() const {
  size_t count = 0;
  for (const auto& [home, tickets] : homes_) count += tickets.size();
  return count;
}

std::map<int, MailboxPolicy::Queue> MailboxPolicy::queues() const {
  std::map<int, Queue> queues;
  for (const auto& [home, tickets] : homes_) {
    queues[home] = {static_cast<int64_t>(tickets.size()), home_bytes_.at(home)};
  }
  return queues;
}

size_t MailboxPolicy::queued_later() const {
  size_t now = 0;
  if (open_) {
    for (const auto& [home, tickets] : homes_) now += static_cast<size_t>(open_tickets(tickets));
  }
  return queued() - now;
}

bool MailboxPolicy::tickets_missing() const {
  if (!open_) return false;
  for (int64_t index = open_->first; index < open_->first + open_->count; ++index) {
    const auto entry = entries_.find({open_->epoch, index});
    if (entry == entries_.end() || entry->second.state == State::kGone) return true;
  }
  return false;
}

}  // namespace percheron
