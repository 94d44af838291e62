#include "bench/stand_in_lengths.h"

#include <algorithm>
#include <iterator>

namespace percheron {

double stand_in_length(double at) {
  constexpr double kShares[] = {0,    0.10,   0.1504, 0.25, 0.331, 0.50, 0.6686,
                                0.75, 0.8018, 0.90,   0.95, 0.99,  1.0};
  constexpr double kLengths[] = {65,   637,  770,  1035, 1216, 1728, 2432,
                                 2912, 3296, 4200, 4374, 4917, 8191};
  const auto point = std::max<std::ptrdiff_t>(
      1, std::lower_bound(std::begin(kShares), std::end(kShares), at) - std::begin(kShares));
  const double rise = kLengths[point] - kLengths[point - 1];
  return kLengths[point - 1] +
         rise * (at - kShares[point - 1]) / (kShares[point] - kShares[point - 1]);
}

}  // namespace percheron
