#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

namespace percheron {

/// Trainers that come to a run between two steps. Newcomers go on from the checkpoint of that step,
/// then everybody tells its parameters' checksum: who differs does not compute (invariant 3).
class JoinRound {
 public:
  /// Without members, as after the loss of all trainers, newcomers only have to agree.
  JoinRound(int64_t step, std::set<int> newcomers, std::set<int> members);

  int64_t step() const { return step_; }
  const std::set<int>& newcomers() const { return newcomers_; }
  /// False if nothing was asked of this trainer, or it has answered already.
  bool restored(int trainer, uint32_t checksum);
  /// The trainer is lost, or could not restore: it is no longer asked.
  void left(int trainer);
  /// Who has not answered.
  const std::set<int>& missing() const { return missing_; }

  struct Verdict {
    std::vector<int> admitted, refused;  // newcomers
    bool members_differ = false;         // among each other
  };
  /// When nobody is missing.
  Verdict verdict() const;

 private:
  int64_t step_;
  std::set<int> newcomers_, members_, missing_;
  std::map<int, uint32_t> checksums_;
};

}  // namespace percheron
