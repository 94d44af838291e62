#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "actors/policy/number_map.h"

namespace percheron {

/// How long each trainer takes for a micro-batch, from the hand-out or the answer to the one before
/// to the answer, and when a step could end at best. A trainer that would end its next micro-batch
/// only after that had better leave it to the others: a slow one that takes the last micro-batch
/// holds up all of them. Times in nanoseconds.
class TrainerPace {
 public:
  /// A trainer's pace is the median of so many micro-batches, so that one pause does not count.
  static constexpr size_t kRemembered = 5;

  explicit TrainerPace(const std::vector<int>& members) { regroup(members); }

  /// Others are members; nobody holds a micro-batch. What is known of their pace stays.
  void regroup(const std::vector<int>& members);
  void begin_step() { left_ = -1; }

  /// It is given a micro-batch, which it computes after those that it holds already.
  void takes(int trainer, int64_t now_ns);
  /// Its micro-batch is computed.
  void ends(int trainer, int64_t now_ns);
  /// From now on it holds so many, and is at the first of them. Without the time of day that one is
  /// not measured.
  void holds(int trainer, size_t micro_batches, int64_t now_ns);
  /// One less, which it is not at.
  void holds_less(int trainer) { --trainers_[trainer].held; }

  /// Works out when the step can end, if that may have changed much; false if it has not. `left`
  /// micro-batches of it have no owner yet. Costs O(members) at most about log2(micro-batches)
  /// times a step.
  bool refresh(int64_t left, int64_t now_ns);
  /// What the trainer takes now would be ended by others sooner. Never while some pace is unknown.
  bool too_late(int trainer, int64_t now_ns) const;

  bool all_known() const { return unknown_ == 0; }
  /// 0 = unknown.
  int64_t pace_ns(int trainer) const;
  /// Trainers that were looked at by refresh(), for tests of what it costs.
  int64_t visited() const { return visited_; }

 private:
  struct Trainer {
    std::array<int64_t, kRemembered> recent{};  // a ring
    size_t known = 0;                           // of them
    size_t next = 0;
    int64_t pace = 0;    // 0 = unknown
    int64_t since = -1;  // when it began, or was given, what it computes; -1 = nothing, or unknown
    size_t held = 0;     // micro-batches, with that one
  };

  /// When a trainer can begin another one.
  static int64_t free_at(const Trainer& trainer, int64_t now_ns);
  int64_t earliest_end(int64_t left, int64_t now_ns);

  NumberMap<Trainer> trainers_;  // everyone that was ever a member
  std::vector<Trainer*> members_;
  size_t unknown_ = 0;  // members without a pace
  int64_t left_ = -1;   // when end_ns_ was worked out; -1 = it was not
  int64_t end_ns_ = 0;
  int64_t fastest_ = 0;
  int64_t visited_ = 0;
};

}  // namespace percheron
