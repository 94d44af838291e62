#include "data/length_buckets.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "base/check.h"
#include "base/units.h"

namespace percheron {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max() / 2;
constexpr int64_t kClassWidth = 32;
constexpr int64_t kClassesMax = 512;
// Padded tokens are counted in parts of a token, shares of a bucket's samples in parts of one.
constexpr int kTokenBits = 10;
constexpr int kShareBits = 40;
// Of batches whose longest lies below: together they would move a cost by less than 2^-24 of it.
constexpr uint64_t kNegligibleShare = uint64_t{1} << 16;
// Samples times longest length, at most, so that sums of costs fit.
constexpr int64_t kPaddedTokensMax = int64_t{1} << 51;

__extension__ using Wide = unsigned __int128;

std::string count(int64_t n) { return format_count(static_cast<uint64_t>(n)); }

uint64_t times(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>((static_cast<Wide>(a) * b) >> kShareBits);
}

// share^exponent, both shares in parts of 2^kShareBits.
uint64_t power(uint64_t share, int64_t exponent) {
  uint64_t result = uint64_t{1} << kShareBits;
  for (; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result = times(result, share);
    share = times(share, share);
  }
  return result;
}

// The expected longest of `draws` samples from (low, high], in parts of a token, as the upper bound
// less the integral of P(longest <= x). Inside a class P(one <= x) rises in a line from s to t, so
// that the integral of its power B is width (t^(B+1) - s^(B+1)) / ((B + 1)(t - s)).
uint64_t expected_longest(const LengthHistogram& lengths, int64_t low, int64_t high, int64_t draws,
                          int64_t step) {
  const int64_t before = lengths.up_to(low);
  const auto samples = static_cast<uint64_t>(lengths.up_to(high) - before);
  const auto share_at = [&](int64_t length) {
    const Wide below = static_cast<Wide>(lengths.up_to(length) - before);
    return static_cast<uint64_t>((below << kShareBits) / samples);
  };
  uint64_t area = 0;
  int64_t right = high;
  uint64_t t = uint64_t{1} << kShareBits;
  uint64_t t_power = t;  // t^draws
  while (right > low && t_power >= kNegligibleShare) {
    const int64_t left = std::max(low, (right - 1) / step * step);
    const uint64_t s = left == low ? 0 : share_at(left);
    const uint64_t s_power = power(s, draws);
    const uint64_t width = static_cast<uint64_t>(right - left) << kTokenBits;
    if (s == t) {
      area += times(width, t_power);
    } else {
      const uint64_t rise = times(t_power, t) - std::min(times(t_power, t), times(s_power, s));
      const uint64_t steps = static_cast<uint64_t>(draws + 1) * (t - s);
      area += static_cast<uint64_t>(static_cast<Wide>(width) * rise / steps);
    }
    right = left;
    t = s;
    t_power = s_power;
  }
  const uint64_t top = static_cast<uint64_t>(high) << kTokenBits;
  return top - std::min(area, static_cast<uint64_t>(high - low) << kTokenBits);
}

int64_t batch_samples(const BatchLimits& limits, int64_t high) {
  return std::clamp<int64_t>(limits.token_budget / high, 1, limits.samples_max);
}

// The samples of (low, high], each padded to the expected longest of its batch, in parts of a
// token.
int64_t expected_padded(const LengthHistogram& lengths, int64_t low, int64_t high,
                        const BatchLimits& limits, int64_t step) {
  const int64_t samples = lengths.up_to(high) - lengths.up_to(low);
  if (samples == 0) return 0;
  const int64_t draws = std::min(samples, batch_samples(limits, high));
  return samples * static_cast<int64_t>(expected_longest(lengths, low, high, draws, step));
}

// best[j]: the least cost of candidates 0 .. j in the layers so far. Fills the next layer between
// j_low and j_high, whose last splits lie in [split_low, split_high].
template <class Cost>
void next_layer(const std::vector<int64_t>& best, const Cost& cost, std::vector<int64_t>& next,
                std::vector<int32_t>& split, int64_t j_low, int64_t j_high, int64_t split_low,
                int64_t split_high) {
  if (j_low > j_high) return;
  const int64_t j = j_low + (j_high - j_low) / 2;
  int64_t least = kNever, at = split_low;
  for (int64_t i = split_low; i <= std::min(j, split_high); ++i) {
    const int64_t total = best[static_cast<size_t>(i)] + cost(i, j);
    if (total < least) {
      least = total;
      at = i;
    }
  }
  next[static_cast<size_t>(j)] = least;
  split[static_cast<size_t>(j)] = static_cast<int32_t>(at);
  next_layer(best, cost, next, split, j_low, j - 1, split_low, at);
  next_layer(best, cost, next, split, j + 1, j_high, at, split_high);
}

enum class Splits { kMonotone, kAny };

// Cuts positions 0 .. n into at most `parts` runs, where the run (i, j] costs cost(i, j), 0 for
// i == j. Returns the ends of the runs that are not empty, ascending; the last is n.
template <class Cost>
std::vector<int64_t> best_cuts(int64_t n, int64_t parts, Splits splits, const Cost& cost) {
  const auto size = static_cast<size_t>(n) + 1;
  std::vector<int64_t> best(size, kNever), next(size);
  best[0] = 0;
  std::vector<std::vector<int32_t>> split(static_cast<size_t>(parts), std::vector<int32_t>(size));
  for (std::vector<int32_t>& layer : split) {
    if (splits == Splits::kMonotone) {
      next_layer(best, cost, next, layer, 0, n, 0, n);
    } else {
      for (int64_t j = 0; j <= n; ++j) next_layer(best, cost, next, layer, j, j, 0, j);
    }
    best.swap(next);
  }
  std::vector<int64_t> ends;
  int64_t end = n;
  for (auto layer = split.rbegin(); layer != split.rend(); ++layer) {
    const int64_t begin = (*layer)[static_cast<size_t>(end)];
    if (begin < end) ends.push_back(end);
    end = begin;
  }
  std::reverse(ends.begin(), ends.end());
  return ends;
}

BucketBounds best_upper_bounds(const LengthHistogram& lengths, int64_t buckets) {
  const std::span<const int32_t> distinct = lengths.distinct();
  PERCHERON_CHECK(std::ssize(distinct) <= kDistinctLengthsMax, "the caller checks the lengths");
  std::vector<int64_t> before(distinct.size() + 1);  // samples of the first i distinct lengths
  for (size_t i = 0; i < distinct.size(); ++i) before[i + 1] = lengths.up_to(distinct[i]);
  const auto cost = [&](int64_t i, int64_t j) {
    if (i == j) return int64_t{0};
    return (before[static_cast<size_t>(j)] - before[static_cast<size_t>(i)]) *
           distinct[static_cast<size_t>(j) - 1];
  };
  BucketBounds bounds;
  for (const int64_t end :
       best_cuts(static_cast<int64_t>(distinct.size()), buckets, Splits::kMonotone, cost))
    bounds.push_back(distinct[static_cast<size_t>(end) - 1]);
  return bounds;
}

BucketBounds best_expected_bounds(const LengthHistogram& lengths, const BatchLimits& limits,
                                  int64_t buckets) {
  const int64_t step = bound_step(lengths);
  const int64_t classes = (lengths.longest() + step - 1) / step;
  std::vector<int64_t> costs(static_cast<size_t>((classes + 1) * (classes + 1)));
  for (int64_t high = 1; high <= classes; ++high) {
    for (int64_t low = 0; low < high; ++low) {
      costs[static_cast<size_t>(low * (classes + 1) + high)] =
          expected_padded(lengths, low * step, high * step, limits, step);
    }
  }
  const auto cost = [&](int64_t i, int64_t j) {
    return costs[static_cast<size_t>(i * (classes + 1) + j)];
  };
  BucketBounds bounds;
  for (const int64_t end : best_cuts(classes, buckets, Splits::kAny, cost))
    bounds.push_back(end * step);
  return bounds;
}

// Drops bounds that repeat, and ends at the longest length.
BucketBounds tidied(BucketBounds bounds, int64_t longest) {
  bounds.back() = longest;
  for (int64_t& bound : bounds) bound = std::min(bound, longest);
  bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
  return bounds;
}

}  // namespace

Result<LengthHistogram> LengthHistogram::make(std::span<const int32_t> lengths) {
  if (lengths.empty()) return invalid_argument("there are no lengths");
  const auto [least, most] = std::minmax_element(lengths.begin(), lengths.end());
  const auto wrong = *least < 1 ? least : most;
  if (*wrong < 1 || *wrong > kLengthMax)
    return invalid_argument("sample " + count(wrong - lengths.begin()) + " has the length " +
                            std::to_string(*wrong) + ", expected 1 to " + count(kLengthMax));
  if (static_cast<int64_t>(lengths.size()) > kPaddedTokensMax / *most)
    return invalid_argument(count(static_cast<int64_t>(lengths.size())) + " samples of up to " +
                            count(*most) + " tokens are too many to plan buckets for; give fewer");
  LengthHistogram histogram;
  histogram.up_to_.resize(static_cast<size_t>(*most) + 1);
  for (const int32_t length : lengths) {
    ++histogram.up_to_[static_cast<size_t>(length)];
    histogram.tokens_ += length;
  }
  for (size_t length = 1; length < histogram.up_to_.size(); ++length) {
    if (histogram.up_to_[length] > 0) histogram.distinct_.push_back(static_cast<int32_t>(length));
    histogram.up_to_[length] += histogram.up_to_[length - 1];
  }
  return histogram;
}

int64_t LengthHistogram::up_to(int64_t length) const {
  if (length < 0) return 0;
  return length >= longest() ? samples() : up_to_[static_cast<size_t>(length)];
}

int64_t LengthHistogram::tokens_in(int64_t low, int64_t high) const {
  int64_t tokens = 0;
  const auto first = std::upper_bound(distinct_.begin(), distinct_.end(), low);
  for (auto length = first; length != distinct_.end() && *length <= high; ++length)
    tokens += *length * (up_to(*length) - up_to(*length - 1));
  return tokens;
}

int64_t LengthHistogram::quantile(int64_t numerator, int64_t denominator) const {
  const auto reached = [&](int32_t length) {
    return static_cast<Wide>(up_to(length)) * static_cast<Wide>(denominator) >=
           static_cast<Wide>(samples()) * static_cast<Wide>(numerator);
  };
  return *std::partition_point(distinct_.begin(), distinct_.end() - 1,
                               [&](int32_t length) { return !reached(length); });
}

int64_t bound_step(const LengthHistogram& lengths) {
  int64_t step = kClassWidth;
  while ((lengths.longest() + step - 1) / step > kClassesMax) step *= 2;
  return step;
}

BucketBounds optimal_bounds(const LengthHistogram& lengths, PaddingModel model,
                            const BatchLimits& limits, int64_t buckets) {
  PERCHERON_CHECK(1 <= buckets && buckets <= kBucketsMax, "the caller checks the buckets");
  return model == PaddingModel::kUpperBound ? best_upper_bounds(lengths, buckets)
                                            : best_expected_bounds(lengths, limits, buckets);
}

BucketBounds geometric_bounds(const LengthHistogram& lengths, int64_t buckets) {
  const auto shortest = static_cast<double>(lengths.shortest());
  const double ratio = static_cast<double>(lengths.longest()) / shortest;
  BucketBounds bounds;
  for (int64_t i = 1; i <= buckets; ++i)
    bounds.push_back(std::llround(
        shortest * std::pow(ratio, static_cast<double>(i) / static_cast<double>(buckets))));
  return tidied(std::move(bounds), lengths.longest());
}

BucketBounds quantile_bounds(const LengthHistogram& lengths, int64_t buckets) {
  BucketBounds bounds;
  for (int64_t i = 1; i <= buckets; ++i) bounds.push_back(lengths.quantile(i, buckets));
  return tidied(std::move(bounds), lengths.longest());
}

double BucketEstimate::efficiency() const {
  return padded_tokens > 0 ? static_cast<double>(tokens) / padded_tokens : 1;
}

std::vector<BucketEstimate> estimate_buckets(const LengthHistogram& lengths, PaddingModel model,
                                             const BatchLimits& limits,
                                             std::span<const int64_t> bounds) {
  std::vector<BucketEstimate> buckets;
  int64_t low = 0;
  for (const int64_t high : bounds) {
    BucketEstimate bucket;
    bucket.low = low;
    bucket.high = high;
    bucket.samples = lengths.up_to(high) - lengths.up_to(low);
    bucket.tokens = lengths.tokens_in(low, high);
    bucket.batch_samples = batch_samples(limits, high);
    if (model == PaddingModel::kUpperBound) {
      bucket.padded_tokens = static_cast<double>(bucket.samples * high);
    } else {
      bucket.padded_tokens =
          static_cast<double>(expected_padded(lengths, low, high, limits, bound_step(lengths))) /
          static_cast<double>(1 << kTokenBits);
    }
    buckets.push_back(bucket);
    low = high;
  }
  return buckets;
}

double efficiency(std::span<const BucketEstimate> buckets) {
  double tokens = 0, padded = 0;
  for (const BucketEstimate& bucket : buckets) {
    tokens += static_cast<double>(bucket.tokens);
    padded += bucket.padded_tokens;
  }
  return padded > 0 ? tokens / padded : 1;
}

Status check_bounds(const LengthHistogram& lengths, std::span<const int64_t> bounds) {
  if (static_cast<int64_t>(bounds.size()) > kBucketsMax)
    return invalid_argument(std::to_string(bounds.size()) + " bounds are given, at most " +
                            std::to_string(kBucketsMax) + " are taken");
  int64_t low = 0;
  for (const int64_t bound : bounds) {
    if (bound > kLengthMax)
      return invalid_argument("the bound " + std::to_string(bound) + " is beyond the longest " +
                              "sample that there may be, " + count(kLengthMax) + " tokens");
    if (bound <= low)
      return invalid_argument("the bound " + std::to_string(bound) + " follows " +
                              std::to_string(low) + ": bounds must ascend");
    low = bound;
  }
  if (low >= lengths.longest()) return ok_status();
  return invalid_argument("the last bound is " + std::to_string(low) +
                          ", but the longest sample has " + count(lengths.longest()) +
                          " tokens: give a last bound that holds it");
}

Status check_distinct(const LengthHistogram& lengths) {
  const auto distinct = std::ssize(lengths.distinct());
  if (distinct <= kDistinctLengthsMax) return ok_status();
  const auto step = static_cast<int64_t>(
      std::bit_ceil(static_cast<uint64_t>((lengths.longest() - 1) / kDistinctLengthsMax + 1)));
  return invalid_argument("the samples have " + count(distinct) +
                          " different lengths, of which the best bounds are searched among at "
                          "most " +
                          count(kDistinctLengthsMax) + ": round the lengths up to multiples of " +
                          std::to_string(step));
}

Status check_limits(const LengthHistogram& lengths, const BatchLimits& limits) {
  if (limits.samples_max < 1 || limits.samples_max > kBatchSamplesMax)
    return invalid_argument("a batch of at most " + std::to_string(limits.samples_max) +
                            " samples was asked for, expected 1 to " + count(kBatchSamplesMax));
  if (limits.token_budget >= lengths.longest()) return ok_status();
  return invalid_argument("the token budget is " + std::to_string(limits.token_budget) +
                          ", but the longest sample has " + count(lengths.longest()) +
                          " tokens: raise the budget or cut the samples");
}

}  // namespace percheron
