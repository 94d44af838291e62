#include "actors/policy/waiting_line.h"

namespace percheron {

void WaitingLine::join(const Waiter& waiter) {
  if (!turns_.emplace(waiter.trainer, next_turn_).second) return;
  line_.emplace_hint(line_.end(), next_turn_, waiter);
  at_queue_[waiter.queue].insert(next_turn_++);
}

void WaitingLine::leave(int trainer) {
  const auto turn = turns_.find(trainer);
  if (turn == turns_.end()) return;
  const auto place = line_.find(turn->second);
  const auto queue = at_queue_.find(place->second.queue);
  queue->second.erase(turn->second);
  if (queue->second.empty()) at_queue_.erase(queue);
  line_.erase(place);
  turns_.erase(turn);
}

void WaitingLine::clear() {
  line_.clear();
  turns_.clear();
  at_queue_.clear();
}

const WaitingLine::Waiter* WaitingLine::first_at(int queue) const {
  const auto turns = at_queue_.find(queue);
  return turns == at_queue_.end() ? nullptr : &line_.at(*turns->second.begin());
}

std::vector<WaitingLine::Waiter> WaitingLine::waiters() const {
  std::vector<Waiter> waiters;
  for (const auto& [turn, waiter] : line_) waiters.push_back(waiter);
  return waiters;
}

}  // namespace percheron
