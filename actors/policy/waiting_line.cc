#include "actors/policy/waiting_line.h"

namespace percheron {

void WaitingLine::append(int trainer, Links Place::*links, Links& ends) {
  (places_.at(trainer).*links) = {ends.last, kNobody};
  (ends.last == kNobody ? ends.first : (places_.at(ends.last).*links).last) = trainer;
  ends.last = trainer;
}

void WaitingLine::unlink(const Place& place, Links Place::*links, Links& ends) {
  const auto [before, behind] = place.*links;
  (before == kNobody ? ends.first : (places_.at(before).*links).last) = behind;
  (behind == kNobody ? ends.last : (places_.at(behind).*links).first) = before;
}

void WaitingLine::join(const Waiter& waiter) {
  if (!places_.emplace(waiter.trainer, Place{waiter, {}, {}}).second) return;
  append(waiter.trainer, &Place::in_line, line_);
  append(waiter.trainer, &Place::at_queue, queues_[waiter.queue]);
}

void WaitingLine::leave(int trainer) {
  const auto found = places_.find(trainer);
  if (found == places_.end()) return;
  const Place& place = found->second;
  unlink(place, &Place::in_line, line_);
  unlink(place, &Place::at_queue, queues_[place.waiter.queue]);
  places_.erase(trainer);
}

void WaitingLine::clear() {
  places_.clear();
  queues_.clear();
  line_ = {};
}

const WaitingLine::Waiter* WaitingLine::first_at(int queue) const {
  const auto ends = queues_.find(queue);
  if (ends == queues_.end() || ends->second.first == kNobody) return nullptr;
  return &places_.at(ends->second.first).waiter;
}

std::vector<WaitingLine::Waiter> WaitingLine::waiters() const {
  std::vector<Waiter> waiters;
  for (int trainer = line_.first; trainer != kNobody;) {
    const Place& place = places_.at(trainer);
    waiters.push_back(place.waiter);
    trainer = place.in_line.last;
  }
  return waiters;
}

}  // namespace percheron
