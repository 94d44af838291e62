#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace percheron {

/// One draft-verify round: `accepted` is the length of the prefix of `draft` that the target agrees
/// with; `verified` = the target's own tokens up to and including the bonus token (accepted + 1 of
/// them).
struct Round {
  int64_t drafted = 0;
  int64_t accepted = 0;
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
  double acceptance_length() const;                   // 1 + accepted / rounds; 1 without rounds
  std::vector<double> accepted_per_position() const;  // share of rounds with accepted > j
  std::vector<std::optional<double>> conditional_per_position()
      const;  // P(accepted > j | accepted >= j)

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
