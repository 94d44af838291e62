#pragma once

#include <vector>

#include "actors/policy/number_map.h"

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

  bool contains(int trainer) const { return places_.count(trainer) != 0; }
  bool empty() const { return line_.first == kNobody; }
  /// Of all; only if not empty().
  const Waiter& first() const { return places_.at(line_.first).waiter; }
  /// Of those at a queue; null if there is none.
  const Waiter* first_at(int queue) const;
  /// Everybody, longest first.
  std::vector<Waiter> waiters() const;

 private:
  static constexpr int kNobody = -1;
  /// The neighbours of a trainer, or the ends of a line.
  struct Links {
    int first = kNobody, last = kNobody;
  };
  struct Place {
    Waiter waiter;
    Links in_line;   // before, behind
    Links at_queue;  // likewise
  };

  void append(int trainer, Links Place::*links, Links& ends);
  void unlink(const Place& place, Links Place::*links, Links& ends);

  NumberMap<Place> places_;  // by trainer
  NumberMap<Links> queues_;  // the ends of those that were waited at
  Links line_;
};

}  // namespace percheron
