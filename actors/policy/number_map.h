#pragma once

#include <array>
#include <cstddef>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "actors/policy/number_set.h"
#include "base/check.h"

namespace percheron {

/// A map by the small numbers that workers, nodes and homes have, in ascending order, with the
/// names of std::map: a place for each number up to the largest. As there, references to values
/// stay valid until these are erased. Memory is that of the largest number, which is never one of a
/// message that nobody has checked.
template <class T>
class NumberMap {
 public:
  using value_type = std::pair<int, T>;

  template <class Map, class Value>
  class Iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = NumberMap::value_type;
    using difference_type = std::ptrdiff_t;
    using pointer = Value*;
    using reference = Value&;

    Iterator() = default;
    Iterator(Map* map, NumberSet::const_iterator number) : map_(map), number_(number) {}
    Value& operator*() const { return map_->place_of(*number_); }
    Value* operator->() const { return &**this; }
    Iterator& operator++() {
      ++number_;
      return *this;
    }
    Iterator operator++(int) {
      const Iterator before = *this;
      ++number_;
      return before;
    }
    bool operator==(const Iterator& other) const { return number_ == other.number_; }

   private:
    Map* map_ = nullptr;
    NumberSet::const_iterator number_;
  };
  using iterator = Iterator<NumberMap, value_type>;
  using const_iterator = Iterator<const NumberMap, const value_type>;

  iterator begin() { return {this, numbers_.begin()}; }
  iterator end() { return {this, numbers_.end()}; }
  const_iterator begin() const { return {this, numbers_.begin()}; }
  const_iterator end() const { return {this, numbers_.end()}; }

  size_t count(int number) const { return numbers_.count(number); }
  bool empty() const { return numbers_.empty(); }
  size_t size() const { return numbers_.size(); }

  iterator find(int number) { return {this, numbers_.find(number)}; }
  const_iterator find(int number) const { return {this, numbers_.find(number)}; }
  T& at(int number) {
    PERCHERON_CHECK(count(number) != 0, "what is asked for by number is there");
    return place_of(number).second;
  }
  const T& at(int number) const { return const_cast<NumberMap*>(this)->at(number); }

  /// The value of `number`, which is T() if it was not there.
  T& operator[](int number) {
    return numbers_.insert(number) ? make(number, T()) : place_of(number).second;
  }
  /// No effect, and false, if it is there.
  std::pair<iterator, bool> emplace(int number, const T& value) {
    const bool is_new = numbers_.insert(number);
    if (is_new) make(number, value);
    return {find(number), is_new};
  }
  size_t erase(int number) { return numbers_.erase(number); }
  void clear() { numbers_.clear(); }

 private:
  static constexpr size_t kPage = 64;
  using Page = std::array<value_type, kPage>;

  value_type& place_of(int number) const {
    const auto place = static_cast<size_t>(number);
    return (*pages_[place / kPage])[place % kPage];
  }
  T& make(int number, T value) {
    while (pages_.size() <= static_cast<size_t>(number) / kPage) {
      pages_.push_back(std::make_unique<Page>());
    }
    place_of(number) = {number, std::move(value)};
    return place_of(number).second;
  }

  NumberSet numbers_;
  std::vector<std::unique_ptr<Page>> pages_;  // up to the largest number that ever was there
};

}  // namespace percheron
