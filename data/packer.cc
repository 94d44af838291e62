#include "data/packer.h"

#include <algorithm>

namespace percheron {

OpenBins::OpenBins(int64_t token_budget, size_t draws)
    : token_budget_(static_cast<int32_t>(token_budget)), next_(draws) {
  rooms_.fill(kNoRoom);
}

std::optional<OpenBins::Bin> OpenBins::add(uint32_t draw, int32_t length) {
  const size_t b = first_fit(length);
  if (b < open_) {
    next_[bins_[b].last] = draw;
    bins_[b].last = draw;
    rooms_[b] -= length;
    if (rooms_[b] > 0) return std::nullopt;
    return take(b);
  }
  const Bin fresh = {token_budget_ - length, draw, draw};
  if (fresh.room == 0) return fresh;
  std::optional<Bin> displaced;
  if (open_ == rooms_.size()) {
    // The fullest has least hope of another sample; the oldest of equals.
    displaced =
        take(static_cast<size_t>(std::min_element(rooms_.begin(), rooms_.end()) - rooms_.begin()));
  }
  rooms_[open_] = fresh.room;
  bins_[open_++] = fresh;
  return displaced;
}

// The first bin with room for `length`, or open_. Blocks without any are skipped at once: this is
// where the time goes.
size_t OpenBins::first_fit(int32_t length) const {
  for (size_t block = 0; block < open_; block += kBlock) {
    int32_t room_max = kNoRoom;
    for (size_t b = block; b < block + kBlock; ++b) room_max = std::max(room_max, rooms_[b]);
    if (room_max < length) continue;
    size_t b = block;
    while (rooms_[b] < length) ++b;
    return b;
  }
  return open_;
}

OpenBins::Bin OpenBins::take(size_t b) {
  Bin bin = bins_[b];
  bin.room = rooms_[b];
  // The order stays: the oldest and fullest are tried first, which packs more densely.
  std::copy(rooms_.begin() + b + 1, rooms_.begin() + open_, rooms_.begin() + b);
  std::copy(bins_.begin() + b + 1, bins_.begin() + open_, bins_.begin() + b);
  rooms_[--open_] = kNoRoom;
  return bin;
}

}  // namespace percheron
