#pragma once

#include <cstdint>
#include <set>

namespace percheron {

/// When an epoch is over, found by counting and not by a sentinel among the data: the sampler has
/// handed out everything, every living target has said that it is done, no lease is outstanding and
/// every step is committed. Whatever order these arrive in, and however targets come and go, the
/// end is reported exactly once.
class EpochTermination {
 public:
  /// `steps` of the epoch have to be committed; `targets` are the living ones.
  EpochTermination(int64_t steps, std::set<int> targets);

  void sampler_exhausted() { exhausted_ = true; }
  /// The sampler has something of this epoch to hand out again (a target or node was lost).
  void sampler_refilled() { exhausted_ = false; }
  void target_joined(int target) { working_.insert(target); }
  void target_done(int target) { working_.erase(target); }
  void target_lost(int target) { working_.erase(target); }
  void leased() { ++leases_; }
  void settled();
  /// The members that held leases have changed: none is outstanding.
  void leases_dropped() { leases_ = 0; }
  void step_committed();

  /// True once: at the first call at which all conditions hold.
  bool report_end();
  bool over() const;
  int64_t committed() const { return committed_; }

 private:
  int64_t steps_;
  std::set<int> working_;
  bool exhausted_ = false;
  int64_t leases_ = 0;
  int64_t committed_ = 0;
  bool reported_ = false;
};

}  // namespace percheron
