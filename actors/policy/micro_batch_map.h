#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "data/micro_batch.h"

namespace percheron {

/// A map by micro-batch in the order of their ids, with the names of std::map, for those that are
/// under way. Their ids are dense, so 64 neighbours share a page, and the page of an id is found by
/// counting from the first or the last; any other ids are only slower. Memory is a page for each 64
/// ids of which one is there, as many as there ever were at once: no single id makes it large.
/// Every insertion and erasure ends the validity of iterators, and none that of references to
/// values that stay.
template <class T>
class MicroBatchMap {
  static_assert(std::is_trivially_copyable_v<T>, "what is erased is only forgotten");
  struct Page;

 public:
  using value_type = std::pair<MicroBatchId, T>;

  template <class Map, class Value>
  class Iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = MicroBatchMap::value_type;
    using difference_type = std::ptrdiff_t;
    using pointer = Value*;
    using reference = Value&;

    Iterator() = default;
    Value& operator*() const { return map_->pages_[place_]->values[slot_]; }
    Value* operator->() const { return &**this; }
    Iterator& operator++() {
      *this = Iterator(map_, place_, slot_ + 1).settled();
      return *this;
    }
    Iterator operator++(int) {
      const Iterator before = *this;
      ++*this;
      return before;
    }
    bool operator==(const Iterator& other) const {
      return place_ == other.place_ && slot_ == other.slot_;
    }

   private:
    friend class MicroBatchMap;
    Iterator(Map* map, size_t place, size_t slot) : map_(map), place_(place), slot_(slot) {}
    /// The first value here or behind.
    Iterator settled() const {
      for (size_t place = place_; place < map_->pages_.size(); ++place) {
        uint64_t left = map_->pages_[place]->present;
        if (place == place_) left = slot_ < kSlots ? left & (~uint64_t{0} << slot_) : 0;
        if (left != 0) return {map_, place, static_cast<size_t>(std::countr_zero(left))};
      }
      return {map_, map_->pages_.size(), 0};
    }

    Map* map_ = nullptr;
    size_t place_ = 0;  // of the page
    size_t slot_ = 0;
  };
  using iterator = Iterator<MicroBatchMap, value_type>;
  using const_iterator = Iterator<const MicroBatchMap, const value_type>;

  iterator begin() { return iterator(this, 0, 0).settled(); }
  iterator end() { return {this, pages_.size(), 0}; }
  const_iterator begin() const { return const_iterator(this, 0, 0).settled(); }
  const_iterator end() const { return {this, pages_.size(), 0}; }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  size_t count(MicroBatchId id) const {
    const size_t place = place_of(id);
    return is_at(place, id) && has(*pages_[place], id);
  }

  iterator find(MicroBatchId id) {
    const size_t place = place_of(id);
    return is_at(place, id) && has(*pages_[place], id) ? iterator(this, place, slot_of(id)) : end();
  }
  const_iterator find(MicroBatchId id) const {
    const size_t place = place_of(id);
    return is_at(place, id) && has(*pages_[place], id) ? const_iterator(this, place, slot_of(id))
                                                       : end();
  }
  /// The first that is not before `id`.
  iterator lower_bound(MicroBatchId id) {
    const size_t place = place_of(id);
    return iterator(this, place, is_at(place, id) ? slot_of(id) : 0).settled();
  }
  T& at(MicroBatchId id) {
    const size_t place = place_of(id);
    PERCHERON_CHECK(is_at(place, id) && has(*pages_[place], id),
                    "what is asked for by id is there");
    return pages_[place]->values[slot_of(id)].second;
  }

  /// The value of `id`, which is T() if it was not there.
  T& operator[](MicroBatchId id) { return emplace(id, T()).first->second; }
  /// No effect, and false, if it is there.
  std::pair<iterator, bool> emplace(MicroBatchId id, const T& value) {
    const size_t place = place_of(id);
    if (!is_at(place, id)) add_page(place, id);
    Page& page = *pages_[place];
    const bool is_new = !has(page, id);
    if (is_new) {
      page.present |= bit_of(id);
      page.values[slot_of(id)] = {id, value};
      ++size_;
    }
    return {iterator(this, place, slot_of(id)), is_new};
  }

  size_t erase(MicroBatchId id) {
    const iterator found = find(id);
    if (found == end()) return 0;
    erase(found);
    return 1;
  }
  /// Returns the next one.
  iterator erase(iterator at) {
    Page& page = *pages_[at.place_];
    page.present &= ~(uint64_t{1} << at.slot_);
    --size_;
    if (page.present != 0) return at.settled();
    spare_.push_back(std::move(pages_[at.place_]));
    pages_.erase(pages_.begin() + static_cast<std::ptrdiff_t>(at.place_));
    return iterator(this, at.place_, 0).settled();
  }
  void clear() {
    for (auto& page : pages_) spare_.push_back(std::move(page));
    pages_.clear();
    size_ = 0;
  }

 private:
  static constexpr size_t kSlots = 64;
  struct Page {
    int64_t epoch = 0;
    int64_t number = 0;    // of the epoch: its first index / kSlots
    uint64_t present = 0;  // a bit for each slot; not 0
    std::array<value_type, kSlots> values{};
  };

  static int64_t number_of(MicroBatchId id) { return id.index >> 6; }
  static size_t slot_of(MicroBatchId id) { return static_cast<size_t>(id.index) % kSlots; }
  static uint64_t bit_of(MicroBatchId id) { return uint64_t{1} << slot_of(id); }
  static bool has(const Page& page, MicroBatchId id) { return (page.present & bit_of(id)) != 0; }
  bool is_at(size_t place, MicroBatchId id) const {
    return place < pages_.size() && pages_[place]->number == number_of(id) &&
           pages_[place]->epoch == id.epoch;
  }

  /// Where the page of `id` is, or belongs.
  size_t place_of(MicroBatchId id) const {
    if (pages_.empty()) return 0;
    const auto number = static_cast<size_t>(number_of(id));
    const size_t behind = number - static_cast<size_t>(pages_.front()->number);
    if (is_at(behind, id)) return behind;
    const size_t before = static_cast<size_t>(pages_.back()->number) - number;
    if (is_at(pages_.size() - 1 - before, id)) return pages_.size() - 1 - before;
    const auto is_less = [](const std::unique_ptr<Page>& page, const auto& key) {
      return std::pair(page->epoch, page->number) < key;
    };
    const auto place =
        std::lower_bound(pages_.begin(), pages_.end(), std::pair(id.epoch, number_of(id)), is_less);
    return static_cast<size_t>(place - pages_.begin());
  }

  void add_page(size_t place, MicroBatchId id) {
    if (spare_.empty()) spare_.push_back(std::make_unique<Page>());
    spare_.back()->epoch = id.epoch;
    spare_.back()->number = number_of(id);
    spare_.back()->present = 0;
    pages_.insert(pages_.begin() + static_cast<std::ptrdiff_t>(place), std::move(spare_.back()));
    spare_.pop_back();
  }

  std::vector<std::unique_ptr<Page>> pages_;  // by epoch and number
  std::vector<std::unique_ptr<Page>> spare_;  // for the next ones
  size_t size_ = 0;
};

}  // namespace percheron
