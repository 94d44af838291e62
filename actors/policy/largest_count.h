#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace percheron {

/// Which of many small numbers has the largest count; of equal ones the least number. A knockout
/// tournament in one array: a change plays again only the rounds whose winner it may change.
class LargestCount {
 public:
  /// number >= 0, count >= 0.
  void set(int number, int64_t count) {
    PERCHERON_CHECK(number >= 0 && count >= 0, "queues and their tickets are counted from 0");
    const auto leaf = static_cast<size_t>(number);
    if (leaf >= counts_.size()) grow(leaf + 1);
    counts_[leaf] = count;
    for (size_t round = (counts_.size() + leaf) / 2; round > 0; round /= 2) {
      const int winner = winner_of(round);
      if (winners_[round] == winner && winner != number) return;
      winners_[round] = winner;
    }
  }
  void clear() {
    counts_.clear();
    winners_.clear();
  }

  /// All are 0.
  bool empty() const { return counts_.empty() || counts_[static_cast<size_t>(largest())] == 0; }
  /// Only if not empty().
  int largest() const { return winners_[1]; }

 private:
  // Round r is between the winners of rounds 2r and 2r + 1, those from counts_.size() on are
  // numbers.
  int contender(size_t round) const {
    return round < counts_.size() ? winners_[round] : static_cast<int>(round - counts_.size());
  }
  int winner_of(size_t round) const {
    const int left = contender(2 * round), right = contender(2 * round + 1);
    return counts_[static_cast<size_t>(right)] > counts_[static_cast<size_t>(left)] ? right : left;
  }
  void grow(size_t numbers) {
    size_t size = counts_.empty() ? 2 : counts_.size();
    while (size < numbers) size *= 2;
    counts_.resize(size);
    winners_.resize(size);
    for (size_t round = size - 1; round > 0; --round) winners_[round] = winner_of(round);
  }

  std::vector<int64_t> counts_;  // of a power of two of numbers
  std::vector<int> winners_;     // of each round from 1 on, which is the last
};

}  // namespace percheron
