#pragma once

#include <bit>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "base/check.h"

namespace percheron {

/// A set of the small numbers that workers, nodes and homes have, in ascending order, with the
/// names of std::set: a bit for each number up to the largest, so that all fit in a few cache
/// lines.
class NumberSet {
 public:
  /// The largest number: no run has as many of anything.
  static constexpr int kLargest = (1 << 20) - 1;

  class const_iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = int;
    using difference_type = std::ptrdiff_t;
    using pointer = const int*;
    using reference = int;

    const_iterator() = default;
    int operator*() const { return number_; }
    const_iterator& operator++() {
      number_ = set_->first_from(number_ + 1);
      return *this;
    }
    const_iterator operator++(int) {
      const const_iterator before = *this;
      ++*this;
      return before;
    }
    bool operator==(const const_iterator& other) const { return number_ == other.number_; }

   private:
    friend class NumberSet;
    const_iterator(const NumberSet* set, int number) : set_(set), number_(number) {}

    const NumberSet* set_ = nullptr;
    int number_ = kNone;
  };

  size_t count(int number) const {
    return number >= 0 && word_of(number) < words_.size() &&
           (words_[word_of(number)] & bit_of(number)) != 0;
  }
  const_iterator find(int number) const { return {this, count(number) != 0 ? number : kNone}; }
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  const_iterator begin() const { return {this, first_from(0)}; }
  const_iterator end() const { return {this, kNone}; }

  /// 0 <= number <= kLargest. False if it is there already.
  bool insert(int number) {
    PERCHERON_CHECK(0 <= number && number <= kLargest, "workers, nodes and homes are counted");
    const size_t word = word_of(number);
    if (word >= words_.size()) {
      words_.resize(word + 1);
      filled_.resize(word / kBits + 1);
    }
    if ((words_[word] & bit_of(number)) != 0) return false;
    words_[word] |= bit_of(number);
    filled_[word / kBits] |= bit_of(static_cast<int>(word));
    ++size_;
    return true;
  }
  /// How many were taken out: 0 if it is not there.
  size_t erase(int number) {
    if (count(number) == 0) return 0;
    const size_t word = word_of(number);
    words_[word] &= ~bit_of(number);
    if (words_[word] == 0) filled_[word / kBits] &= ~bit_of(static_cast<int>(word));
    --size_;
    return 1;
  }
  void clear() {
    if (empty()) return;
    words_.assign(words_.size(), 0);
    filled_.assign(filled_.size(), 0);
    size_ = 0;
  }

 private:
  static constexpr int kBits = 64;
  static constexpr int kNone = INT_MAX;  // behind all

  static size_t word_of(int number) { return static_cast<size_t>(number) / kBits; }
  static uint64_t bit_of(int number) { return uint64_t{1} << (number % kBits); }

  /// The least that is at least `number`; kNone if there is none.
  int first_from(int number) const {
    size_t word = word_of(number);
    if (word >= words_.size()) return kNone;
    const uint64_t here = words_[word] & (~uint64_t{0} << (number % kBits));
    if (here != 0) return number_at(word, here);
    ++word;
    for (size_t block = word / kBits; block < filled_.size(); ++block) {
      uint64_t words = filled_[block];
      if (block == word / kBits) words &= ~uint64_t{0} << (word % kBits);
      if (words == 0) continue;
      word = block * kBits + static_cast<size_t>(std::countr_zero(words));
      return number_at(word, words_[word]);
    }
    return kNone;
  }
  static int number_at(size_t word, uint64_t bits) {
    return static_cast<int>(word) * kBits + std::countr_zero(bits);
  }

  std::vector<uint64_t> words_;   // a bit for each number
  std::vector<uint64_t> filled_;  // a bit for each word that is not 0
  size_t size_ = 0;
};

}  // namespace percheron
