#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace percheron {

/// One draft-verify round. It yields accepted + 1 tokens: those drafts and the bonus token, which
/// is the target's own.
struct Round {
  int64_t drafted = 0;   // tokens that were drafted
  int64_t accepted = 0;  // those of their prefix with which the target agrees
};

/// Longest n with draft[i] == target[i] for all i < n.
int64_t accepted_prefix(std::span<const int32_t> draft, std::span<const int32_t> target);

/// Counts over rounds; sums of two machines may be added. Always: acceptance_length() = 1 + sum of
/// accepted_per_position(). Source: vLLM v1/spec_decode/metrics.py. The bonus token is counted;
/// rounds cut by a stop token or a length limit count whole.
class AcceptanceCounts {
 public:
  void add(const Round& round);
  void add(const AcceptanceCounts& other);

  int64_t rounds() const { return rounds_; }
  int64_t drafted() const { return drafted_; }
  int64_t accepted() const { return accepted_; }
  /// 1 + accepted / rounds; 1 without rounds.
  double acceptance_length() const;
  /// [j] = share of the rounds with accepted > j.
  std::vector<double> accepted_per_position() const;
  /// [j] = share of the rounds with accepted >= j that have accepted > j; none where there are
  /// none.
  std::vector<std::optional<double>> conditional_per_position() const;

 private:
  int64_t rounds_ = 0, drafted_ = 0, accepted_ = 0;
  std::vector<int64_t> survived_;  // [j] rounds with accepted > j
};

/// The same idea on training blocks, where each draft slot is compared with a known token at once.
/// Peers call three different numbers by similar names; docs say "simulated" for the first. Source:
/// speculators 0.9.0 (`eal`), SpecForge 0.2.0 (`simulated_acc_len`).
class BlockAgreement {
 public:
  /// One block: per slot whether the draft was right, and whether the slot counts (its token is
  /// supervised).
  void add(std::span<const uint8_t> correct, std::span<const uint8_t> valid);

  /// 1 + the mean length of the correct prefix; a slot that doesn't count ends it, a block without
  /// valid slots is none.
  double mean_run_plus_one() const;
  std::vector<double> accuracy_per_position() const;
  /// Sum over j of the product of the mean accuracies of slots 0 .. j, without bonus: loses their
  /// correlation.
  double sum_of_products() const;

 private:
  int64_t blocks_ = 0, run_sum_ = 0;
  std::vector<int64_t> valid_, correct_;  // per slot
};

}  // namespace percheron
