#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "actors/policy/lease_table.h"
#include "actors/policy/step_plan.h"
#include "actors/policy/ticket.h"

namespace percheron {

/// Who computes which micro-batch of a step.
enum class Assignment {
  kStealing,  // whoever is free: the oldest ticket of its own home, else of the fullest other home
  kFixed,     // micro-batch index modulo trainers, each trainer in index order: bit-reproducible
};

/// A ticket leased to a trainer.
struct Work {
  Ticket ticket;
  int64_t lease = 0;
  bool stolen = false;  // from another home than the trainer's own
};

/// The shared queue between targets and trainers: one deque of tickets per home, leases, and which
/// micro-batches of the open step are computed. Only tickets of the open step are handed out;
/// those of later steps wait. A trainer's sums live with it until the commit, so the loss of a
/// trainer queues the whole open step again for the others (invariant 1).
class MailboxPolicy {
 public:
  /// `trainers` are the members, in rank order; a single one is always served in index order.
  /// `lease_ttl_ns`: 0 = leases have no end.
  MailboxPolicy(Assignment assignment, std::vector<int> trainers, int64_t lease_ttl_ns);

  /// Opens a step; the one before must be committed.
  void open_step(const PlannedStep& range);

  enum class Put { kQueued, kDuplicate };
  /// Queues a ticket of the open or a later step. A duplicate (queued, leased, computed or
  /// committed already) is counted and its features are the caller's to free.
  Put put(const Ticket& ticket);

  /// The next ticket for an idle trainer whose own home is `home`; none if there is none for it
  /// now.
  std::optional<Work> take(int trainer, int home, int64_t now_ns);

  /// A trainer's gradient sums now contain `id`. False, and counted, for a stale lease.
  bool computed(MicroBatchId id, int trainer, int64_t lease);
  /// All micro-batches of the open step are computed.
  bool step_computed() const;
  /// Ends the open step, whose sums every member has applied or will; returns its tickets, whose
  /// features may be freed.
  std::vector<Ticket> commit_step();

  /// Others are members from now on: nothing computed in the open step counts, every lease ends.
  /// `membership` is higher than the one before. Returns micro-batches whose features are gone too
  /// and must be produced again.
  std::vector<MicroBatchId> change_members(std::vector<int> members, int64_t membership);
  /// A member died before the commit: change_members() to the others.
  std::vector<MicroBatchId> trainer_lost(int trainer);
  /// A node's features are gone. Returns the micro-batches to be produced again.
  std::vector<MicroBatchId> node_lost(int node);
  /// A trainer can't read the features of its lease; true if they must be produced again, false for
  /// a stale lease.
  bool unreadable(MicroBatchId id, int trainer, int64_t lease);
  /// Forgets all tickets, leases and the open step: the run goes back to an earlier one.
  void restart();
  /// Members that hold a lease beyond its time.
  std::vector<int> overdue_trainers(int64_t now_ns) const { return leases_.overdue_owners(now_ns); }

  int64_t membership() const { return membership_; }
  const std::vector<int>& members() const { return members_; }
  const std::optional<PlannedStep>& open() const { return open_; }
  size_t queued() const;
  size_t leased() const { return leases_.outstanding(); }
  /// What waits at a home.
  struct Queue {
    int64_t tickets = 0;
    uint64_t bytes = 0;  // of their features
  };
  std::map<int, Queue> queues() const;
  /// Queued tickets of steps that are not open.
  size_t queued_later() const;
  /// Of the open step some micro-batch has no ticket yet.
  bool tickets_missing() const;
  int64_t steals() const { return steals_; }
  int64_t duplicates() const { return duplicates_; }
  int64_t stale() const { return stale_; }
  /// Micro-batches that a change of members took from who had them or had computed them.
  int64_t queued_again() const { return queued_again_; }

 private:
  enum class State { kQueued, kLeased, kComputed, kGone };
  struct Entry {
    Ticket ticket;
    State state = State::kQueued;
    bool features_gone = false;  // computed, but its features can't be read again
  };
  bool serves_in_order() const {
    // A single trainer adds in index order, so that a repeated run has the same bits.
    return assignment_ == Assignment::kFixed || members_.size() == 1;
  }
  using Home = std::set<MicroBatchId>;  // in order, so its first is the oldest

  std::optional<MicroBatchId> pick_fixed(int trainer) const;
  std::optional<MicroBatchId> pick_stealing(int home) const;
  void queue(Entry& entry);
  int64_t open_tickets(const Home& home) const;

  Assignment assignment_;
  std::vector<int> members_;
  LeaseTable leases_;
  std::optional<PlannedStep> open_;
  MicroBatchId committed_before_{0, 0};  // every micro-batch before this one is committed
  std::map<MicroBatchId, Entry> entries_;
  std::map<int, Home> homes_;
  std::map<int, uint64_t> home_bytes_;  // of the features of queued tickets
  int64_t membership_ = 0;
  int64_t steals_ = 0, duplicates_ = 0, stale_ = 0, queued_again_ = 0;
};

}  // namespace percheron
