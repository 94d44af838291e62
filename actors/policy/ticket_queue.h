#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "data/micro_batch.h"

namespace percheron {

/// A set of ids with the names of std::set, for those that come almost in order and of which mostly
/// the first is taken: both ends cost nothing, another place a move of what is on its shorter side.
class TicketQueue {
 public:
  using const_iterator = std::vector<MicroBatchId>::const_iterator;

  const_iterator begin() const { return ids_.begin() + first_; }
  const_iterator end() const { return ids_.end(); }
  size_t size() const { return static_cast<size_t>(end() - begin()); }
  bool empty() const { return begin() == end(); }
  int64_t count_before(MicroBatchId id) const {
    return std::lower_bound(begin(), end(), id) - begin();
  }

  /// False if it is there already.
  bool insert(MicroBatchId id) {
    if (empty() || ids_.back() < id) {
      ids_.push_back(id);
      return true;
    }
    const auto place = std::lower_bound(ids_.begin() + first_, ids_.end(), id);
    if (*place == id) return false;
    if (first_ > 0 && place - begin() < end() - place) {
      std::move(ids_.begin() + first_, place, ids_.begin() + first_ - 1);
      *(place - 1) = id;
      --first_;
    } else {
      ids_.insert(place, id);
    }
    return true;
  }

  /// How many were taken out: 0 if it is not there.
  size_t erase(MicroBatchId id) {
    const auto place = !empty() && *begin() == id
                           ? ids_.begin() + first_
                           : std::lower_bound(ids_.begin() + first_, ids_.end(), id);
    if (place == ids_.end() || *place != id) return 0;
    if (place - begin() < end() - place) {
      std::move_backward(ids_.begin() + first_, place, place + 1);
      ++first_;
      close_gap();
    } else {
      ids_.erase(place);
    }
    return 1;
  }

 private:
  // Every move of what is left is paid for by as many that were taken out.
  void close_gap() {
    if (first_ < end() - begin()) return;
    ids_.erase(ids_.begin(), ids_.begin() + first_);
    first_ = 0;
  }

  std::vector<MicroBatchId> ids_;  // ascending from first_ on
  std::ptrdiff_t first_ = 0;
};

}  // namespace percheron
