#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace percheron {

/// Micro-batches open for packing at once.
inline constexpr size_t kOpenBinsMax = 64;

/// First-fit packing over at most kOpenBinsMax open micro-batches, so that the time is linear. What
/// they hold are draws: positions in the epoch's random order, chained so that no micro-batch needs
/// memory of its own.
class OpenBins {
 public:
  /// Draws 0 .. draws - 1 will be added.
  OpenBins(int64_t token_budget, size_t draws);

  /// A micro-batch: its draws from `first` over next() to `last`, and the tokens that it could
  /// still hold.
  struct Bin {
    int32_t room = 0;
    uint32_t first = 0;
    uint32_t last = 0;
  };

  /// Puts the draw into the first bin with room, in the order in which they were opened, else into
  /// a new one. Returns the bin that this fills or displaces. 1 <= length <= token_budget.
  std::optional<Bin> add(uint32_t draw, int32_t length);
  /// The oldest bin, if one is open.
  std::optional<Bin> take_oldest() { return open_ == 0 ? std::nullopt : std::optional(take(0)); }
  /// The draw after `draw` in its bin; only for others than its last.
  uint32_t next(uint32_t draw) const { return next_[draw]; }

 private:
  static constexpr int32_t kNoRoom = -1;
  static constexpr size_t kBlock = 16;
  static_assert(kOpenBinsMax % kBlock == 0);

  size_t first_fit(int32_t length) const;
  Bin take(size_t b);

  const int32_t token_budget_;
  size_t open_ = 0;
  std::array<int32_t, kOpenBinsMax> rooms_;  // Apart from bins_: the search reads nothing else.
  std::array<Bin, kOpenBinsMax> bins_{};
  std::vector<uint32_t> next_;
};

}  // namespace percheron
