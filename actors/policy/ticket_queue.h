#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>

#include "data/micro_batch.h"

namespace percheron {

/// A set of ids with the names of std::set, for those that come almost in order and of which mostly
/// the first is taken: both ends cost nothing, another place a move of what is on its shorter side.
class TicketQueue {
 public:
  using const_iterator = std::deque<MicroBatchId>::const_iterator;

  const_iterator begin() const { return ids_.begin(); }
  const_iterator end() const { return ids_.end(); }
  size_t size() const { return ids_.size(); }
  bool empty() const { return ids_.empty(); }

  /// False if it is there already.
  bool insert(MicroBatchId id) {
    if (ids_.empty() || ids_.back() < id) {
      ids_.push_back(id);
      return true;
    }
    const auto place = std::lower_bound(ids_.begin(), ids_.end(), id);
    if (*place == id) return false;
    ids_.insert(place, id);
    return true;
  }
  /// How many were taken out: 0 if it is not there.
  size_t erase(MicroBatchId id) {
    if (!ids_.empty() && ids_.front() == id) {
      ids_.pop_front();
      return 1;
    }
    const auto place = std::lower_bound(ids_.begin(), ids_.end(), id);
    if (place == ids_.end() || *place != id) return 0;
    ids_.erase(place);
    return 1;
  }
  void clear() { ids_.clear(); }

 private:
  std::deque<MicroBatchId> ids_;  // ascending
};

}  // namespace percheron
