#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "actors/policy/assignment.h"
#include "actors/policy/held_leases.h"
#include "actors/policy/largest_count.h"
#include "actors/policy/lease_table.h"
#include "actors/policy/micro_batch_map.h"
#include "actors/policy/number_map.h"
#include "actors/policy/number_set.h"
#include "actors/policy/step_plan.h"
#include "actors/policy/ticket.h"
#include "actors/policy/ticket_queue.h"
#include "actors/policy/trainer_pace.h"
#include "actors/policy/waiting_line.h"

namespace percheron {

/// A ticket leased to a trainer.
struct Work {
  Ticket ticket;
  int64_t lease = 0;
  bool stolen = false;  // from another home than the trainer's own
  bool ahead = false;   // beside what the trainer holds already, to be computed after that
};

/// The shared queue between targets and trainers: deques of tickets, trainers that wait for one,
/// leases, and which micro-batches of the open step are computed. Only tickets of the open step are
/// handed out; those of later steps wait. A trainer's sums live with it until the commit, so the
/// loss of a trainer queues the whole open step again for the others (invariant 1).
///
/// A trainer that computes may hold further leases, to fetch their features meanwhile: as many as
/// `prefetch_bytes` has room for. An idle trainer always comes before one that looks ahead, and
/// where trainers steal nobody looks ahead near the end of a step: not when there are no more
/// tickets left than trainers, not beyond the time by which all can have ended the step, and not
/// from a home whose own trainers would miss it.
///
/// There is a deque for each home; with kRoundRobin and kPerTrainerQueue for each trainer. A ticket
/// costs O(log) of tickets and trainers from its put to its commit; only a change of members and a
/// new step look at all of them.
class MailboxPolicy {
 public:
  /// `trainers` are the members, in rank order; a single one is always served in index order.
  /// `lease_ttl_ns`: 0 = leases have no end. `prefetch_bytes`: of the features that a trainer holds
  /// ahead, of which the first may be larger; 0 = none.
  MailboxPolicy(Assignment assignment, std::vector<int> trainers, int64_t lease_ttl_ns,
                uint64_t prefetch_bytes = 0);

  /// Opens a step; the one before must be committed.
  void open_step(const PlannedStep& range);

  enum class Put { kQueued, kDuplicate };
  /// Queues a ticket of the open or a later step. A duplicate (queued, leased, computed or
  /// committed already) is counted and its features are the caller's to free.
  Put put(const Ticket& ticket);

  /// A member whose own home is `home` has begun. From here on it waits in line whenever it holds
  /// no lease, and need not say so again. No effect for who is no member.
  void wait(int trainer, int home);
  bool holds_any(int trainer) const { return held_.holds_any(trainer); }
  /// Whether sums are added in the order of index.
  bool in_order() const { return serves_in_order(); }
  struct HandOut {
    int trainer = 0;
    Work work;
  };
  /// The next ticket for one of those who wait, else for one that looks ahead; none when there is
  /// none for any of them now. A trainer that would hold up the end of the step gets none as long
  /// as faster ones compute.
  std::optional<HandOut> hand_out(int64_t now_ns);
  /// The next ticket for this trainer, whatever its pace; none if there is none for it now.
  std::optional<Work> take(int trainer, int home, int64_t now_ns);

  /// A trainer's gradient sums now contain `id`. False, and counted, for a stale lease. Without
  /// the time of day its pace stays as it was.
  bool computed(MicroBatchId id, int trainer, int64_t lease, int64_t now_ns = 0);
  /// What the members are told so that they begin to sum before the last of them is computed.
  struct LastHandedOut {
    int64_t step = 0;
    int64_t group = 0;  // grows whenever others sum, or what was told before does not hold
  };
  /// Once for each time that it comes true: every ticket of the open step is handed out, so that
  /// what a member has is its last. More may come again only when members change or features are
  /// lost.
  std::optional<LastHandedOut> take_last_handed_out();
  /// All micro-batches of the open step are computed.
  bool step_computed() const { return open_ && computed_ == open_->count; }
  /// Ends the open step, whose sums every member has applied or will, and returns it: the features
  /// of its micro-batches may be freed.
  PlannedStep commit_step();

  /// Others are members from now on: nothing computed in the open step counts, every lease ends,
  /// and who is no member waits no more.
  /// `membership` is higher than the one before. Returns micro-batches whose features are gone too
  /// and must be produced again.
  std::vector<MicroBatchId> change_members(std::vector<int> members, int64_t membership);
  /// A member died before the commit: change_members() to the others.
  std::vector<MicroBatchId> trainer_lost(int trainer);
  /// A node's features are gone. Returns the micro-batches to be produced again.
  std::vector<MicroBatchId> node_lost(int node);
  /// A trainer can't read the features of its lease, which must be produced again: returns their
  /// bytes, none for a stale lease.
  std::optional<uint64_t> unreadable(MicroBatchId id, int trainer, int64_t lease,
                                     int64_t now_ns = 0);
  /// Forgets all tickets, leases and the open step: the run goes back to an earlier one.
  void restart();
  /// Members that hold a lease beyond its time.
  std::vector<int> overdue_trainers(int64_t now_ns) const { return leases_.overdue_owners(now_ns); }

  int64_t membership() const { return membership_; }
  const std::vector<int>& members() const { return members_; }
  bool is_member(int trainer) const { return rank_.count(trainer) != 0; }
  const std::optional<PlannedStep>& open() const { return open_; }
  size_t queued() const { return queued_; }
  size_t leased() const { return leases_.outstanding(); }
  /// What waits in a deque.
  struct Queue {
    int64_t tickets = 0;
    uint64_t bytes = 0;  // of their features
  };
  std::map<int, Queue> queues() const;
  /// Those that changed since the last call of this, as they are now; valid until the next call.
  const std::vector<std::pair<int, Queue>>& take_changed_queues();
  /// Queued tickets of steps that are not open.
  size_t queued_later() const { return queued_ - queued_open_; }
  /// Of the open step some micro-batch has no ticket yet.
  bool tickets_missing() const { return open_ && present_ < open_->count; }
  int64_t steals() const { return steals_; }
  int64_t duplicates() const { return duplicates_; }
  int64_t stale() const { return stale_; }
  /// Micro-batches that a change of members took from who had them or had computed them.
  int64_t queued_again() const { return queued_again_; }
  /// Tickets, queues and trainers that were gone through, for tests of what a ticket costs.
  int64_t visited() const { return visited_ + pace_.visited(); }

 private:
  enum class State { kQueued, kLeased, kComputed, kGone };
  struct Entry {
    Ticket ticket;
    State state = State::kGone;
    bool features_gone = false;  // computed, but its features can't be read again
    int queue = 0;               // while queued
  };
  struct Tickets {
    TicketQueue ids;   // in order, so the first is the oldest, and the open step's lead
    int64_t open = 0;  // of the open step
    uint64_t bytes = 0;
  };
  bool serves_in_order() const {
    // A single trainer adds in index order, so that a repeated run has the same bits.
    return assignment_ == Assignment::kFixed || members_.size() == 1;
  }
  bool steals_work() const { return assignment_ == Assignment::kStealing && !serves_in_order(); }
  int member_at(int64_t number) const {
    return members_[static_cast<size_t>(number) % members_.size()];
  }
  /// The deque that a ticket waits in, and the one that a trainer is served from first.
  int queue_of(const Ticket& ticket) const;
  int queue_of(int trainer, int home) const;
  /// What must be looked at when a ticket of it comes or goes: the waiters at this queue.
  int served_at(const Entry& entry) const;

  void set_state(Entry& entry, State state);
  void queue(Entry& entry);
  void unqueue(Entry& entry);
  void count_open(int queue, int64_t change);
  std::optional<MicroBatchId> next_in_order(int trainer);
  std::optional<MicroBatchId> first_of(int queue) const;
  std::optional<MicroBatchId> pick(int trainer, int home);
  /// Keeps ready_ true for a queue, or for all.
  void look_at(int queue);
  void look_at_all();
  const WaitingLine::Waiter* next_waiter() const;
  void rest(const WaitingLine::Waiter& waiter);
  void end_rest();
  std::optional<HandOut> serve(const WaitingLine::Waiter& waiter, int64_t now_ns);
  std::optional<HandOut> hand_out_to_idle(int64_t now_ns);
  void begin_order();
  void count_places();
  /// Takes a lease that is over from its trainer, which goes on with the next one it holds.
  void end_lease(int trainer, MicroBatchId id, int64_t now_ns);

  // --- looking ahead, in mailbox_look_ahead.cc
  int64_t left_of_step() const {
    return open_->count - computed_ - static_cast<int64_t>(leases_.outstanding());
  }
  /// A trainer that holds something looks for more.
  void look_ahead(int trainer);
  const WaitingLine::Waiter* next_ahead() const;
  /// The fullest home, if it has more tickets than trainers of its own; else none.
  std::optional<int> home_to_spare() const;
  bool may_hold(const WaitingLine::Waiter& waiter, const Ticket& ticket, int64_t now_ns) const;
  std::optional<HandOut> hand_out_ahead(int64_t now_ns);

  Assignment assignment_;
  std::vector<int> members_;
  NumberMap<int64_t> rank_;  // of each member
  LeaseTable leases_;
  std::optional<PlannedStep> open_;
  MicroBatchId committed_before_{0, 0};  // every micro-batch before this one is committed
  MicroBatchMap<Entry> entries_;
  NumberMap<Tickets> queues_;
  LargestCount fullest_;                     // of the queues' tickets of the open step
  NumberSet changed_;                        // queues, for take_changed_queues()
  std::vector<std::pair<int, Queue>> told_;  // its answer
  size_t queued_ = 0, queued_open_ = 0;
  int64_t present_ = 0, computed_ = 0;  // of the open step: not gone; computed
  std::vector<int64_t> next_in_order_;  // of each rank: the first index that it has not computed

  HeldLeases held_;
  WaitingLine line_;
  NumberSet ready_;                         // queues with a waiter and a ticket for it
  NumberMap<WaitingLine::Waiter> resting_;  // who had better not take any more of this step
  WaitingLine ahead_;                       // who computes and would hold more
  NumberSet ahead_ready_;                   // queues with one of them and a ticket for it
  NumberMap<WaitingLine::Waiter> places_;   // of each member that has been idle
  NumberMap<int64_t> served_at_;            // members by the queue that they are served from
  TrainerPace pace_;
  int64_t membership_ = 0;
  int64_t group_ = 0;             // of LastHandedOut
  bool told_handed_out_ = false;  // of the open step, and it holds
  int64_t steals_ = 0, duplicates_ = 0, stale_ = 0, queued_again_ = 0;
  int64_t visited_ = 0;
};

}  // namespace percheron
