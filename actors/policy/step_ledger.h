#pragma once

#include <cstdint>
#include <set>
#include <vector>

namespace percheron {

/// The agreement on steps: a step is reduced by every member, then committed, then applied by every
/// member; only then does the next one open. A member's death before the commit undoes the step
/// (its micro-batches are computed again by the others), a death after it undoes nothing.
/// Messages of another step or of an older membership are refused and counted.
class StepLedger {
 public:
  enum class Phase { kComputing, kReducing, kApplying };

  /// The run goes on with `step`, the first that is not applied yet.
  StepLedger(std::vector<int> members, int64_t step);

  /// All micro-batches of the step are computed: members may reduce. False if stale.
  bool computed(int64_t step, int64_t membership);
  /// A member holds the sum over all. Returns true when it was the last: the caller commits.
  bool reduced(int member, int64_t step, int64_t membership);
  /// From here on the step survives any death.
  void commit();
  /// A member's parameters now contain the step. Returns true when it was the last: the step is
  /// over and the next one open.
  bool applied(int member, int64_t step);

  enum class Loss {
    kNothing,    // it was no member
    kRecompute,  // before the commit: the step is computed again
    kCommitted,  // after the commit, others have still to apply
    kStepOver,   // after the commit, and it was the last one missing: the step is over
    kNobody,     // no member is left
  };
  Loss member_lost(int member);
  /// A member with the parameters of the open step joins before anything of it is reduced.
  bool member_joined(int member);
  /// After kNobody: the run goes back to `step`, which members that join from now on begin with.
  void restart(int64_t step);

  /// Members that have not done their part of the phase, for messages.
  std::vector<int> missing() const;
  Phase phase() const { return phase_; }
  int64_t step() const { return step_; }
  int64_t membership() const { return membership_; }
  /// In ascending order.
  const std::vector<int>& members() const { return members_; }
  bool is_member(int number) const;
  int64_t committed_steps() const { return committed_; }
  int64_t stale() const { return stale_; }

 private:
  bool refuse_unless(bool wanted);
  bool all_reported() const { return reported_.size() == members_.size(); }
  void finish_step();

  std::vector<int> members_;
  int64_t step_;
  int64_t membership_ = 0;
  Phase phase_ = Phase::kComputing;
  std::set<int> reported_;  // members that have done their part of the phase
  int64_t committed_ = 0;
  int64_t stale_ = 0;
};

}  // namespace percheron
