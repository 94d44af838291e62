#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

namespace percheron {

/// Trainers that wait for a ticket, longest first, and by the queue that each is served from first.
class WaitingLine {
 public:
  struct Waiter {
    int trainer = 0;
    int home = 0;   // as the trainer told it
    int queue = 0;  // that it is served from first
  };

  /// No effect if the trainer waits already.
  void join(const Waiter& waiter);
  /// No effect if it does not wait.
  void leave(int trainer);
  void clear();

  bool contains(int trainer) const { return turns_.count(trainer) != 0; }
  bool empty() const { return line_.empty(); }
  /// Of all; only if not empty().
  const Waiter& first() const { return line_.begin()->second; }
  /// Of those at a queue; null if there is none.
  const Waiter* first_at(int queue) const;
  /// Everybody, longest first.
  std::vector<Waiter> waiters() const;

 private:
  int64_t next_turn_ = 0;
  std::map<int64_t, Waiter> line_;             // by turn
  std::map<int, int64_t> turns_;               // of each trainer
  std::map<int, std::set<int64_t>> at_queue_;  // turns; no empty set
};

}  // namespace percheron
