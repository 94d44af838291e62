#include "actors/policy/mailbox_policy.h"

#include <algorithm>

#include "base/check.h"

namespace percheron {

MailboxPolicy::MailboxPolicy(Assignment assignment, std::vector<int> trainers, int64_t lease_ttl_ns,
                             uint64_t prefetch_bytes)
    : assignment_(assignment),
      members_(std::move(trainers)),
      leases_(lease_ttl_ns),
      held_(prefetch_bytes),
      pace_(members_) {
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    rank_[members_[rank]] = static_cast<int64_t>(rank);
  }
}

// --- steps ---------------------------------------------------------------------------------------

void MailboxPolicy::open_step(const PlannedStep& range) {
  PERCHERON_CHECK(!open_, "one step is open at a time");
  open_ = range;
  committed_before_ = {range.epoch, range.first};
  // What is there of it waits in some queue: only tickets of an open step are ever handed out.
  for (const auto& [queue, tickets] : queues_) {
    ++visited_;
    const int64_t open = tickets.ids.count_before({range.epoch, range.first + range.count});
    if (open == 0) continue;
    present_ += open;
    count_open(queue, open);
  }
  told_handed_out_ = false;
  pace_.begin_step();
  begin_order();
  look_at_all();
}

void MailboxPolicy::begin_order() {
  next_in_order_.clear();
  if (!open_ || !serves_in_order()) return;
  const auto size = static_cast<int64_t>(members_.size());
  for (int64_t rank = 0; rank < size; ++rank) {
    const int64_t ahead = (rank - open_->first % size + size) % size;
    next_in_order_.push_back(open_->first + ahead);
  }
}

PlannedStep MailboxPolicy::commit_step() {
  PERCHERON_CHECK(step_computed(), "only a computed step is committed");
  const PlannedStep done = *open_;
  for (int64_t i = 0; i < done.count; ++i) entries_.erase({done.epoch, done.first + i});
  committed_before_ = {done.epoch, done.first + done.count};
  open_.reset();
  present_ = computed_ = 0;
  end_rest();
  return done;
}

// --- tickets -------------------------------------------------------------------------------------

int MailboxPolicy::queue_of(const Ticket& ticket) const {
  if (members_.empty()) return ticket.home;
  switch (assignment_) {
    case Assignment::kStealing:
    case Assignment::kFixed: break;
    case Assignment::kRoundRobin: return member_at(ticket.target);
    case Assignment::kPerTrainerQueue: return member_at(ticket.id.index);
  }
  return ticket.home;
}

int MailboxPolicy::queue_of(int trainer, int home) const { return steals_work() ? home : trainer; }

int MailboxPolicy::served_at(const Entry& entry) const {
  return serves_in_order() ? member_at(entry.ticket.id.index) : entry.queue;
}

void MailboxPolicy::set_state(Entry& entry, State state) {
  if (open_ && open_->contains(entry.ticket.id)) {
    present_ += (state != State::kGone) - (entry.state != State::kGone);
    computed_ += (state == State::kComputed) - (entry.state == State::kComputed);
  }
  entry.state = state;
}

void MailboxPolicy::count_open(int queue, int64_t change) {
  Tickets& tickets = queues_.at(queue);
  tickets.open += change;
  queued_open_ = static_cast<size_t>(static_cast<int64_t>(queued_open_) + change);
  fullest_.set(queue, tickets.open);
}

void MailboxPolicy::queue(Entry& entry) {
  set_state(entry, State::kQueued);
  entry.queue = queue_of(entry.ticket);
  Tickets& tickets = queues_[entry.queue];
  tickets.ids.insert(entry.ticket.id);
  tickets.bytes += entry.ticket.bytes;
  ++queued_;
  changed_.insert(entry.queue);
  if (!open_ || !open_->contains(entry.ticket.id)) return;
  count_open(entry.queue, 1);
  if (!members_.empty()) look_at(served_at(entry));
}

void MailboxPolicy::unqueue(Entry& entry) {
  Tickets& tickets = queues_.at(entry.queue);
  tickets.ids.erase(entry.ticket.id);
  tickets.bytes -= entry.ticket.bytes;
  --queued_;
  changed_.insert(entry.queue);
  if (open_ && open_->contains(entry.ticket.id)) count_open(entry.queue, -1);
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

// --- who gets what -------------------------------------------------------------------------------

std::optional<MicroBatchId> MailboxPolicy::next_in_order(int trainer) {
  const auto rank = rank_.find(trainer);
  if (!open_ || rank == rank_.end()) return std::nullopt;
  const auto size = static_cast<int64_t>(members_.size());
  int64_t& index = next_in_order_[static_cast<size_t>(rank->second)];
  for (; index < open_->first + open_->count; index += size) {
    const auto entry = entries_.find({open_->epoch, index});
    if (entry == entries_.end()) return std::nullopt;
    if (entry->second.state == State::kComputed) continue;
    if (entry->second.state == State::kLeased) break;
    if (entry->second.state == State::kQueued) return entry->first;
    return std::nullopt;  // it is gone
  }
  // Behind what it holds, which is not computed yet.
  for (int64_t next = index; next < open_->first + open_->count; next += size) {
    const auto entry = entries_.find({open_->epoch, next});
    if (entry == entries_.end() || entry->second.state == State::kGone) return std::nullopt;
    if (entry->second.state == State::kQueued) return entry->first;
  }
  return std::nullopt;
}

std::optional<MicroBatchId> MailboxPolicy::first_of(int queue) const {
  const auto tickets = queues_.find(queue);
  if (tickets == queues_.end() || tickets->second.open == 0) return std::nullopt;
  return *tickets->second.ids.begin();  // Nothing is older than the open step.
}

std::optional<MicroBatchId> MailboxPolicy::pick(int trainer, int home) {
  if (serves_in_order()) return next_in_order(trainer);
  const auto own = first_of(queue_of(trainer, home));
  if (own || !steals_work() || fullest_.empty()) return own;
  return first_of(fullest_.largest());
}

std::optional<Work> MailboxPolicy::take(int trainer, int home, int64_t now_ns) {
  if (!open_ || !is_member(trainer)) return std::nullopt;
  const std::optional<MicroBatchId> id = pick(trainer, home);
  if (!id) return std::nullopt;
  Entry& entry = entries_.at(*id);
  unqueue(entry);
  set_state(entry, State::kLeased);
  group_ += told_handed_out_ ? 1 : 0;
  told_handed_out_ = false;
  look_at(served_at(entry));
  const bool ahead = held_.holds_any(trainer);
  held_.add(trainer, *id, entry.ticket.bytes, serves_in_order());
  pace_.takes(trainer, now_ns);
  const bool queues_of_homes =
      assignment_ == Assignment::kStealing || assignment_ == Assignment::kFixed;
  const bool stolen = queues_of_homes && entry.ticket.home != home;
  steals_ += stolen ? 1 : 0;
  return Work{entry.ticket, leases_.grant(*id, trainer, now_ns), stolen, ahead};
}

void MailboxPolicy::look_at(int queue) {
  const bool idle = line_.first_at(queue) != nullptr;
  const bool looks_ahead = ahead_.first_at(queue) != nullptr;
  const bool ticket =
      (idle || looks_ahead) && (serves_in_order() ? next_in_order(queue) : first_of(queue));
  const auto note = [queue](NumberSet& ready, bool is) {
    is ? void(ready.insert(queue)) : void(ready.erase(queue));
  };
  note(ready_, idle && ticket);
  note(ahead_ready_, looks_ahead && ticket);
}

void MailboxPolicy::look_at_all() {
  ready_.clear();
  ahead_ready_.clear();
  for (const WaitingLine* line : {&line_, &ahead_}) {
    for (const WaitingLine::Waiter& waiter : line->waiters()) {
      ++visited_;
      look_at(waiter.queue);
    }
  }
}

void MailboxPolicy::wait(int trainer, int home) {
  if (!is_member(trainer) || resting_.count(trainer) != 0 || held_.holds_any(trainer)) return;
  const int queue = queue_of(trainer, home);
  const WaitingLine::Waiter waiter{trainer, home, queue};
  if (places_.emplace(trainer, waiter).second) ++served_at_[queue];
  line_.join(waiter);
  look_at(queue);
}

// Where trainers are served from may change with their number.
void MailboxPolicy::count_places() {
  const NumberMap<WaitingLine::Waiter> before = std::move(places_);
  places_ = {};
  served_at_.clear();
  for (const auto& [trainer, place] : before) {
    if (!is_member(trainer)) continue;
    const int queue = queue_of(trainer, place.home);
    places_[trainer] = {trainer, place.home, queue};
    ++served_at_[queue];
  }
}

const WaitingLine::Waiter* MailboxPolicy::next_waiter() const {
  if (!ready_.empty()) return line_.first_at(*ready_.begin());
  const bool may_steal = steals_work() && queued_open_ > 0 && !line_.empty();
  return may_steal ? &line_.first() : nullptr;
}

void MailboxPolicy::rest(const WaitingLine::Waiter& waiter) {
  const WaitingLine::Waiter gone = waiter;
  resting_[gone.trainer] = gone;
  line_.leave(gone.trainer);
  look_at(gone.queue);
}

void MailboxPolicy::end_rest() {
  for (const auto& [trainer, waiter] : resting_) {
    ++visited_;
    line_.join(waiter);
    look_at(waiter.queue);
  }
  resting_.clear();
}

std::optional<MailboxPolicy::HandOut> MailboxPolicy::serve(const WaitingLine::Waiter& waiter,
                                                           int64_t now_ns) {
  const WaitingLine::Waiter served = waiter;
  line_.leave(served.trainer);
  std::optional<Work> work = take(served.trainer, served.home, now_ns);
  look_at(served.queue);
  PERCHERON_CHECK(work, "who is next has something to take");
  look_ahead(served.trainer);
  return HandOut{served.trainer, *work};
}

std::optional<MailboxPolicy::HandOut> MailboxPolicy::hand_out(int64_t now_ns) {
  const bool anyone = !line_.empty() || !resting_.empty() || !ahead_.empty();
  if (!open_ || queued_open_ == 0 || !anyone) return std::nullopt;
  if (steals_work() && pace_.refresh(left_of_step(), now_ns)) end_rest();
  if (const std::optional<HandOut> idle = hand_out_to_idle(now_ns)) return idle;
  return hand_out_ahead(now_ns);
}

std::optional<MailboxPolicy::HandOut> MailboxPolicy::hand_out_to_idle(int64_t now_ns) {
  while (const WaitingLine::Waiter* waiter = next_waiter()) {
    if (!steals_work() || !pace_.too_late(waiter->trainer, now_ns)) return serve(*waiter, now_ns);
    rest(*waiter);
  }
  // As long as others compute, their answers bring those who rest back to mind.
  if (resting_.empty() || leases_.outstanding() > 0) return std::nullopt;
  const auto pace = [this](const auto& entry) { return pace_.pace_ns(entry.first); };
  const WaitingLine::Waiter fastest = std::ranges::min_element(resting_, {}, pace)->second;
  resting_.erase(fastest.trainer);
  return serve(fastest, now_ns);
}

std::optional<MailboxPolicy::LastHandedOut> MailboxPolicy::take_last_handed_out() {
  const bool all = open_ && queued_open_ == 0 && present_ == open_->count;
  if (!all || told_handed_out_) return std::nullopt;
  told_handed_out_ = true;
  return LastHandedOut{open_->step, group_};
}

bool MailboxPolicy::computed(MicroBatchId id, int trainer, int64_t lease, int64_t now_ns) {
  if (!leases_.settle(id, trainer, lease)) {
    ++stale_;
    return false;
  }
  pace_.ends(trainer, now_ns);
  end_lease(trainer, id, now_ns);  // It goes on with the next one.
  Entry& entry = entries_.at(id);
  set_state(entry, State::kComputed);
  look_at(served_at(entry));
  return true;
}

void MailboxPolicy::end_lease(int trainer, MicroBatchId id, int64_t now_ns) {
  if (held_.remove(trainer, id)) {
    pace_.holds(trainer, held_.count(trainer), now_ns);
  } else {
    pace_.holds_less(trainer);
  }
  if (held_.holds_any(trainer)) return look_ahead(trainer);
  ahead_.leave(trainer);
  const auto place = places_.find(trainer);
  if (place == places_.end()) return;
  look_at(place->second.queue);
  wait(trainer, place->second.home);
}

// --- losses --------------------------------------------------------------------------------------

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
  ++group_;
  told_handed_out_ = false;
  rank_.clear();
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    rank_[members_[rank]] = static_cast<int64_t>(rank);
  }
  pace_.regroup(members_);
  for (const auto& [trainer, waiter] : resting_) line_.join(waiter);
  resting_.clear();
  const std::vector<WaitingLine::Waiter> waiters = line_.waiters();
  line_.clear();
  ready_.clear();
  ahead_.clear();
  held_.clear();  // All drop their partial sums, so what they hold counts no more either.
  leases_.clear();
  count_places();
  for (const WaitingLine::Waiter& waiter : waiters) {
    if (is_member(waiter.trainer)) {
      line_.join({waiter.trainer, waiter.home, queue_of(waiter.trainer, waiter.home)});
    }
  }
  for (const auto& [trainer, place] : places_) line_.join(place);  // behind those who waited
  begin_order();
  std::vector<MicroBatchId> again;
  for (auto& [id, entry] : entries_) {
    ++visited_;
    if (entry.state == State::kGone) continue;
    if (entry.state == State::kQueued) {  // perhaps for a trainer that is no more
      unqueue(entry);
      queue(entry);
      continue;
    }
    ++queued_again_;
    if (entry.features_gone) {
      set_state(entry, State::kGone);
      again.push_back(id);
    } else {
      queue(entry);
    }
  }
  look_at_all();
  return again;
}

std::vector<MicroBatchId> MailboxPolicy::node_lost(int node) {
  std::vector<MicroBatchId> again;
  for (auto& [id, entry] : entries_) {
    if (entry.ticket.node != node || entry.state == State::kGone || entry.features_gone) continue;
    // What is leased or computed already was read; only a lost trainer would ask for it again.
    entry.features_gone = true;
    if (entry.state == State::kQueued) {
      unqueue(entry);
      set_state(entry, State::kGone);
      again.push_back(id);
    }
  }
  look_at_all();
  return again;
}

std::optional<uint64_t> MailboxPolicy::unreadable(MicroBatchId id, int trainer, int64_t lease,
                                                  int64_t now_ns) {
  if (!leases_.settle(id, trainer, lease)) {
    ++stale_;
    return std::nullopt;
  }
  Entry& entry = entries_.at(id);
  set_state(entry, State::kGone);
  end_lease(trainer, id, now_ns);
  return entry.ticket.bytes;
}

void MailboxPolicy::restart() {
  leases_.clear();
  held_.clear();
  ahead_.clear();
  pace_.regroup(members_);
  end_rest();
  for (const auto& [trainer, place] : places_) line_.join(place);
  for (const auto& [queue, tickets] : queues_) changed_.insert(queue);
  entries_.clear();
  queues_.clear();
  fullest_.clear();
  ready_.clear();
  ahead_ready_.clear();
  queued_ = queued_open_ = 0;
  present_ = computed_ = 0;
  open_.reset();
  committed_before_ = {0, 0};
}

// --- for those who watch -------------------------------------------------------------------------

std::map<int, MailboxPolicy::Queue> MailboxPolicy::queues() const {
  std::map<int, Queue> queues;
  for (const auto& [number, tickets] : queues_) {
    queues[number] = {static_cast<int64_t>(tickets.ids.size()), tickets.bytes};
  }
  return queues;
}

const std::vector<std::pair<int, MailboxPolicy::Queue>>& MailboxPolicy::take_changed_queues() {
  told_.clear();
  for (int number : changed_) {
    const auto tickets = queues_.find(number);
    Queue& queue = told_.emplace_back(number, Queue{}).second;
    if (tickets == queues_.end()) continue;
    queue = {static_cast<int64_t>(tickets->second.ids.size()), tickets->second.bytes};
  }
  changed_.clear();
  return told_;
}

}  // namespace percheron
