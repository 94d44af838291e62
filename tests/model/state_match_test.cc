// Which state a slot of captured features holds.

#include "model/state_match.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/random.h"

namespace percheron {
namespace {

constexpr int64_t kLayers = 6;
constexpr size_t kHidden = 64, kStates = kLayers + 1;
constexpr double kEpsilon = 1e-5;

/// The residual stream of rows whose layers each add a tenth of its size, as real ones do.
class StateMatchTest : public testing::Test {
 protected:
  StateMatchTest() : random_(Random::keyed(20250407, "states")), norm_(kHidden) {
    RecordProperty("seed", "20250407");
    for (float& w : norm_) w = static_cast<float>(1 + 0.2 * random_.normal());
    for (int row = 0; row < 16; ++row) {
      std::vector<float> states(kStates * kHidden);
      for (size_t c = 0; c < kHidden; ++c) {
        double x = 3 * random_.normal();
        for (size_t j = 0; j < kStates; ++j, x += 0.3 * random_.normal()) {
          states[j * kHidden + c] = static_cast<float>(x);
        }
      }
      rows_.push_back(states);
    }
  }
  std::vector<float> state(const std::vector<float>& row, int64_t j) const {
    const auto begin = row.begin() + j * static_cast<std::ptrdiff_t>(kHidden);
    return {begin, begin + static_cast<std::ptrdiff_t>(kHidden)};
  }
  std::vector<float> normed(const std::vector<float>& row) const {
    std::vector<float> x = state(row, kLayers);
    double squares = 0;
    for (const double value : x) squares += value * value;
    for (size_t c = 0; c < kHidden; ++c) {
      x[c] = static_cast<float>(x[c] / std::sqrt(squares / kHidden + kEpsilon) * norm_[c]);
    }
    return x;
  }
  /// A slot that holds what `of_row` makes of each row, off by `noise` of its size.
  template <typename OfRow>
  StateMatch match(double noise, const OfRow& of_row) {
    StateMatch match(kLayers, norm_, kEpsilon);
    for (const std::vector<float>& row : rows_) {
      std::vector<float> held = of_row(row);
      for (float& value : held) value *= static_cast<float>(1 + noise * random_.normal());
      match.add_row(row, held);
    }
    return match;
  }

  Random random_;
  std::vector<float> norm_;
  std::vector<std::vector<float>> rows_;
};

TEST_F(StateMatchTest, EveryStateIsFoundThroughAnEnginesRoundings) {
  for (const double noise : {0.0, 0.002, 0.03}) {
    for (int64_t j = 0; j <= kLayers; ++j) {
      const StateMatch slot = match(noise, [&](const auto& row) { return state(row, j); });
      for (int64_t stated = 0; stated <= kLayers + 1; ++stated) {
        EXPECT_EQ(slot.holds(stated), stated == j) << j << " as " << stated << ", noise " << noise;
      }
      EXPECT_EQ(slot.nearest(), j);
      EXPECT_NEAR(slot.error(j), noise, 0.5 * noise);
    }
  }
}

TEST_F(StateMatchTest, TheLastStateIsToldFromWhatTheNormMakesOfIt) {
  const StateMatch slot = match(0.01, [&](const auto& row) { return normed(row); });
  EXPECT_EQ(slot.nearest(), kLayers + 1);
  EXPECT_TRUE(slot.holds(kLayers + 1));
  EXPECT_FALSE(slot.holds(kLayers));
}

TEST_F(StateMatchTest, OtherVectorsMatchNothing) {
  const StateMatch slot = match(0, [&](const auto&) {
    std::vector<float> other(kHidden);
    for (float& value : other) value = static_cast<float>(3 * random_.normal());
    return other;
  });
  EXPECT_GT(slot.error(slot.nearest()), 0.5);
  for (int64_t j = 0; j <= kLayers + 1; ++j) EXPECT_FALSE(slot.holds(j));
}

// The first rows of a text are large and hardly change from layer to layer.
TEST_F(StateMatchTest, FewRowsThatAreAlikeAfterEveryLayerHideNothing) {
  for (size_t row = 0; row < 4; ++row) {
    for (size_t j = 0; j < kStates; ++j) rows_[row][j * kHidden] = 5000;
  }
  const StateMatch slot = match(0.002, [&](const auto& row) { return state(row, 3); });
  EXPECT_FALSE(slot.holds(2));
  EXPECT_TRUE(slot.holds(3));
  EXPECT_FALSE(slot.holds(4));
}

// A router may send single rows to another expert.
TEST_F(StateMatchTest, FewRowsThatDifferRefuseNothing) {
  int row_number = 0;
  const StateMatch slot = match(
      0.002, [&](const auto& row) { return ++row_number <= 4 ? state(row, 0) : state(row, 5); });
  EXPECT_TRUE(slot.holds(5));
}

TEST_F(StateMatchTest, StatesThatAreTheSameAreNotToldApart) {
  for (auto& row : rows_) {
    for (size_t c = 0; c < kHidden; ++c) row[3 * kHidden + c] = row[2 * kHidden + c] * 1.001f;
  }
  const StateMatch slot = match(0, [&](const auto& row) { return state(row, 2); });
  EXPECT_TRUE(slot.holds(2));
  EXPECT_TRUE(slot.holds(3)) << "in bf16 they are one";
}

TEST_F(StateMatchTest, WhatIsNotFiniteIsFar) {
  for (auto& row : rows_) row[kHidden] = INFINITY;
  const StateMatch slot = match(0, [&](const auto& row) { return state(row, 2); });
  EXPECT_EQ(slot.error(1), 2);
  EXPECT_TRUE(slot.holds(2));
}

}  // namespace
}  // namespace percheron
