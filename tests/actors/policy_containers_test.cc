// The containers of the policies against those of the standard library that they take the place of.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include "actors/policy/largest_count.h"
#include "actors/policy/micro_batch_map.h"
#include "actors/policy/number_map.h"
#include "actors/policy/number_set.h"
#include "actors/policy/ticket_queue.h"
#include "actors/policy/waiting_line.h"
#include "base/random.h"

namespace percheron {
namespace {

constexpr int kWorlds = 60;
constexpr int kMoves = 3000;

Random random_of(const char* what, int world) {
  return Random::keyed(11, what, static_cast<uint64_t>(world));
}

/// Ids as a run has them: those of a window that moves on, over the ends of epochs, some of which
/// are made again; in some worlds also held-out ones and ones from anywhere.
class Ids {
 public:
  Ids(Random& random, int world)
      : random_(random), wild_(world % 3 == 2), epoch_(world % 2 == 0 ? 1'000'000 : 150) {}

  MicroBatchId any() {
    if (random_.below(8) == 0) window_ += random_.below(wild_ ? 400 : 30);
    if (wild_ && random_.below(10) == 0) {
      const int64_t far[] = {std::numeric_limits<int64_t>::max(), int64_t{1} << 40, 0, 63, 64};
      return {static_cast<int64_t>(random_.below(4)) - 1, far[random_.below(5)]};
    }
    const auto number = static_cast<int64_t>(window_ + random_.below(200));
    return {number / epoch_, number % epoch_};
  }

 private:
  Random& random_;
  const bool wild_;
  const int64_t epoch_;  // micro-batches of one
  uint64_t window_ = 0;
};

template <class Map, class Model>
void expect_same(const Map& map, const Model& model) {
  ASSERT_EQ(map.size(), model.size());
  ASSERT_EQ(map.empty(), model.empty());
  auto expected = model.begin();
  for (const auto& [key, value] : map) {
    ASSERT_EQ(key, expected->first);
    ASSERT_EQ(value, expected->second);
    ++expected;
  }
  ASSERT_TRUE(expected == model.end());
}

void compare_micro_batch_maps(int world) {
  SCOPED_TRACE(world);
  Random random = random_of("micro_batch_map", world);
  Ids ids(random, world);
  MicroBatchMap<int64_t> map;
  std::map<MicroBatchId, int64_t> model;
  for (int move = 0; move < kMoves; ++move) {
    const MicroBatchId id = ids.any();
    switch (random.below(8)) {
      case 0:
      case 1:
      case 2: ASSERT_EQ(map.emplace(id, move).second, model.emplace(id, move).second); break;
      case 3: ASSERT_EQ(++map[id], ++model[id]); break;
      case 4: ASSERT_EQ(map.erase(id), model.erase(id)); break;
      case 5: {  // The oldest are done.
        const uint64_t count = random.below(60);
        for (uint64_t i = 0; i < count && !model.empty(); ++i) {
          const auto next = map.erase(map.begin());
          const auto expected = model.erase(model.begin());
          ASSERT_EQ(next == map.end(), expected == model.end());
          if (next != map.end()) {
            ASSERT_EQ(next->first, expected->first);
          }
        }
        break;
      }
      case 6: {
        const auto from = map.lower_bound(id);
        const auto expected = model.lower_bound(id);
        ASSERT_EQ(from == map.end(), expected == model.end());
        if (from != map.end()) {
          ASSERT_EQ(from->first, expected->first);
        }
        break;
      }
      default: {
        const auto found = map.find(id);
        ASSERT_EQ(map.count(id), model.count(id));
        ASSERT_EQ(found != map.end(), model.count(id) != 0);
        if (found != map.end()) {
          ASSERT_EQ(found->second, model.at(id));
        }
      }
    }
    if (move % 50 == 0) expect_same(map, model);
    if (move % 1000 == 999) map.clear(), model.clear();
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(MicroBatchMap, DoesWhatAnOrderedMapDoes) {
  for (int world = 0; world < kWorlds; ++world) compare_micro_batch_maps(world);
}

TEST(MicroBatchMap, ReferencesStayWhileOthersComeAndGo) {
  MicroBatchMap<int64_t> map;
  int64_t& kept = map[{0, 1000}];
  kept = 7;
  for (int64_t index = 0; index < 2000; ++index) map[{0, index}] += 1;
  for (int64_t index = 0; index < 2000; ++index) {
    if (index != 1000) map.erase({0, index});
  }
  EXPECT_EQ(kept, 8);
  EXPECT_EQ(&map.at({0, 1000}), &kept);
}

TEST(NumberMap, DoesWhatAnOrderedMapDoes) {
  for (int world = 0; world < kWorlds; ++world) {
    SCOPED_TRACE(world);
    Random random = random_of("number_map", world);
    const uint64_t numbers = world % 2 == 0 ? 70 : 9000;
    NumberMap<int64_t> map;
    NumberSet set;
    std::map<int, int64_t> model;
    for (int move = 0; move < kMoves; ++move) {
      const int number = static_cast<int>(random.below(numbers));
      switch (random.below(4)) {
        case 0:
          set.insert(number);
          ASSERT_EQ(map.emplace(number, move).second, model.emplace(number, move).second);
          break;
        case 1:
          set.insert(number);
          ASSERT_EQ(++map[number], ++model[number]);
          break;
        case 2:
          ASSERT_EQ(set.erase(number), model.count(number));
          ASSERT_EQ(map.erase(number), model.erase(number));
          break;
        default:
          ASSERT_EQ(set.count(number), model.count(number));
          ASSERT_EQ(map.find(number) != map.end(), model.count(number) != 0);
      }
      if (move % 50 != 0) continue;
      expect_same(map, model);
      std::vector<int> keys;
      for (const auto& [key, value] : model) keys.push_back(key);
      ASSERT_EQ(std::vector<int>(set.begin(), set.end()), keys);
      ASSERT_EQ(set.size(), keys.size());
      if (move % 1000 == 0) map.clear(), set.clear(), model.clear();
    }
  }
}

TEST(NumberSet, KnowsNoNumberThatNobodyPutIn) {
  NumberSet set;
  EXPECT_EQ(set.begin(), set.end());
  set.insert(4095);
  for (int number : {-1, 0, 63, 64, 4094, 4096, std::numeric_limits<int>::max()}) {
    EXPECT_EQ(set.count(number), 0u) << number;
    EXPECT_EQ(set.erase(number), 0u) << number;
  }
  EXPECT_EQ(*set.begin(), 4095);
}

TEST(TicketQueue, DoesWhatAnOrderedSetDoes) {
  for (int world = 0; world < kWorlds; ++world) {
    SCOPED_TRACE(world);
    Random random = random_of("ticket_queue", world);
    Ids ids(random, world);
    TicketQueue queue;
    std::set<MicroBatchId> model;
    for (int move = 0; move < kMoves; ++move) {
      const MicroBatchId id = ids.any();
      if (random.below(2) == 0) {
        ASSERT_EQ(queue.insert(id), model.insert(id).second);
      } else if (random.below(2) == 0) {
        ASSERT_EQ(queue.erase(id), model.erase(id));
      } else if (!model.empty()) {
        const MicroBatchId first = *queue.begin();
        ASSERT_EQ(queue.erase(first), model.erase(first));
      }
      ASSERT_EQ(queue.size(), model.size());
      if (!model.empty()) {
        ASSERT_EQ(*queue.begin(), *model.begin());
      }
      if (move % 100 == 0) {
        ASSERT_EQ(std::vector(queue.begin(), queue.end()), std::vector(model.begin(), model.end()));
      }
    }
  }
}

TEST(LargestCount, IsThatOfTheLeastNumberAmongEqualOnes) {
  for (int world = 0; world < kWorlds; ++world) {
    SCOPED_TRACE(world);
    Random random = random_of("largest_count", world);
    const uint64_t numbers = world % 2 == 0 ? 3 : 300;
    LargestCount counts;
    std::map<int, int64_t> model;
    EXPECT_TRUE(counts.empty());
    for (int move = 0; move < kMoves; ++move) {
      const int number = static_cast<int>(random.below(numbers));
      const auto count = static_cast<int64_t>(random.below(6));
      counts.set(number, count);
      model[number] = count;
      int largest = model.begin()->first;
      for (const auto& [other, its_count] : model) {
        if (its_count > model.at(largest)) largest = other;
      }
      ASSERT_EQ(counts.empty(), model.at(largest) == 0);
      if (!counts.empty()) {
        ASSERT_EQ(counts.largest(), largest);
      }
    }
  }
}

TEST(WaitingLine, ServesWhoWaitsLongestOfAllAndAtEachQueue) {
  for (int world = 0; world < kWorlds; ++world) {
    SCOPED_TRACE(world);
    Random random = random_of("waiting_line", world);
    WaitingLine line;
    std::vector<WaitingLine::Waiter> model;
    for (int move = 0; move < kMoves; ++move) {
      const int trainer = static_cast<int>(random.below(20));
      const auto is_it = [trainer](const auto& waiter) { return waiter.trainer == trainer; };
      const bool waits = std::ranges::any_of(model, is_it);
      ASSERT_EQ(line.contains(trainer), waits);
      if (random.below(2) == 0) {
        const int queue = static_cast<int>(random.below(4));
        line.join({trainer, 0, queue});
        if (!waits) model.push_back({trainer, 0, queue});
      } else {
        line.leave(trainer);
        std::erase_if(model, is_it);
      }
      ASSERT_EQ(line.empty(), model.empty());
      const auto waiters = line.waiters();
      ASSERT_EQ(waiters.size(), model.size());
      for (size_t i = 0; i < model.size(); ++i) ASSERT_EQ(waiters[i].trainer, model[i].trainer);
      if (!model.empty()) {
        ASSERT_EQ(line.first().trainer, model.front().trainer);
      }
      for (int queue = 0; queue < 4; ++queue) {
        const auto first = std::ranges::find(model, queue, &WaitingLine::Waiter::queue);
        const WaitingLine::Waiter* found = line.first_at(queue);
        ASSERT_EQ(found != nullptr, first != model.end());
        if (found) {
          ASSERT_EQ(found->trainer, first->trainer);
        }
      }
      if (move % 1000 == 999) line.clear(), model.clear();
    }
  }
}

}  // namespace
}  // namespace percheron
