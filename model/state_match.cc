#include "model/state_match.h"

#include <algorithm>
#include <cmath>

#include "base/status.h"

namespace percheron {
namespace {

constexpr double kFarthest = 2;  // of two vectors, by the measure of error()

double relative_error(std::span<const float> held, std::span<const float> state) {
  double difference = 0, held_square = 0, state_square = 0;
  for (size_t c = 0; c < held.size(); ++c) {
    const double a = held[c], b = state[c];
    difference += (a - b) * (a - b);
    held_square += a * a;
    state_square += b * b;
  }
  if (difference == 0) return 0;
  const double error = std::sqrt(difference / std::max(held_square, state_square));
  return std::isfinite(error) ? error : kFarthest;
}

}  // namespace

StateMatch::StateMatch(int64_t layers, std::span<const float> final_norm, double epsilon)
    : final_norm_(final_norm), epsilon_(epsilon), errors_(static_cast<size_t>(layers) + 2) {}

void StateMatch::add_row(std::span<const float> live, std::span<const float> held) {
  const size_t hidden = final_norm_.size(), states = errors_.size() - 1;
  PERCHERON_CHECK(held.size() == hidden && live.size() == states * hidden,
                  "a row has every state of the target");
  for (size_t j = 0; j < states; ++j) {
    errors_[j].push_back(relative_error(held, live.subspan(j * hidden, hidden)));
  }
  std::vector<float> normed(live.end() - static_cast<std::ptrdiff_t>(hidden), live.end());
  double squares = 0;
  for (const double x : normed) squares += x * x;
  const double scale = 1 / std::sqrt(squares / static_cast<double>(hidden) + epsilon_);
  for (size_t c = 0; c < hidden; ++c) {
    normed[c] = static_cast<float>(normed[c] * scale * final_norm_[c]);
  }
  errors_.back().push_back(relative_error(held, normed));
}

double StateMatch::error(int64_t state) const {
  std::vector<double> rows = errors_[static_cast<size_t>(state)];
  PERCHERON_CHECK(!rows.empty(), "a slot is judged by its rows");
  const auto middle = rows.begin() + static_cast<std::ptrdiff_t>(rows.size() / 2);
  std::nth_element(rows.begin(), middle, rows.end());
  return *middle;
}

int64_t StateMatch::nearest() const {
  int64_t best = 0;
  for (int64_t state = 1; state < static_cast<int64_t>(errors_.size()); ++state) {
    if (error(state) < error(best)) best = state;
  }
  return best;
}

bool StateMatch::holds(int64_t state) const {
  const double off = error(state);
  if (off > kErrorMax) return false;
  return off <= kRounding || off <= kNearer * error(nearest());
}

}  // namespace percheron
