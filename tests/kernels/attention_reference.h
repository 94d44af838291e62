#pragma once

// Masks as the models make them, and attention over them in double.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops.h"

namespace percheron::kernel_test {

using Interval = std::array<int64_t, 4>;

/// What a mask looks like: how many keys there are and what each row sees.
struct Mask {
  std::string name;
  int64_t keys;
  std::vector<Interval> rows;
};

/// Causal attention over packed documents.
inline Mask causal(const std::vector<int64_t>& lengths) {
  Mask mask{"causal", 0, {}};
  for (const int64_t length : lengths) {
    for (int64_t i = 0; i < length; ++i) {
      mask.rows.push_back({mask.keys, mask.keys + i + 1, 0, 0});
    }
    mask.keys += length;
  }
  return mask;
}

/// DFlash: blocks that see their document's context before the anchor, and themselves.
inline Mask blocks(int64_t context, int64_t block, const std::vector<int64_t>& anchors) {
  Mask mask{"blocks", context, {}};
  for (const int64_t anchor : anchors) {
    for (int64_t i = 0; i < block; ++i) {
      mask.rows.push_back({0, anchor, mask.keys, mask.keys + block});
    }
    mask.keys += block;
  }
  return mask;
}

/// EAGLE-3: causal, and the first `seen` of the row's own `steps` keys, which lie side by side.
inline Mask diagonal(int64_t length, int64_t steps, int64_t seen) {
  Mask mask{"diagonal", length + length * steps, {}};
  for (int64_t i = 0; i < length; ++i) {
    mask.rows.push_back({0, i + 1, length + i * steps, length + i * steps + seen});
  }
  return mask;
}
inline Mask diagonal(int64_t length, int64_t steps) { return diagonal(length, steps, steps); }

/// Sliding windows over packed documents: every row's interval begins elsewhere. Rows may name
/// their document's first key as the origin of their tiles.
enum class Origin { kUnnamed, kNamed };
inline Mask sliding(const std::vector<int64_t>& lengths, int64_t window,
                    Origin origin = Origin::kUnnamed) {
  const bool named = origin == Origin::kNamed;
  Mask mask{named ? "sliding from an origin" : "sliding", 0, {}};
  for (const int64_t length : lengths) {
    for (int64_t i = 0; i < length; ++i) {
      mask.rows.push_back({mask.keys + std::max<int64_t>(0, i + 1 - window), mask.keys + i + 1,
                           named ? mask.keys : 0, named ? kOriginOnly : 0});
    }
    mask.keys += length;
  }
  return mask;
}

/// Decoding: few rows, each with its own slot of a cache; every third sees nothing.
inline Mask slots(int64_t rows, int64_t length) {
  Mask mask{"slots", rows * length, {}};
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t seen = i % 3 == 2 ? 0 : (i * 37) % length + 1;
    mask.rows.push_back({i * length, i * length + seen, 5, 5});
  }
  return mask;
}

/// Which keys any row sees.
inline std::vector<bool> seen_keys(const Mask& mask) {
  std::vector<bool> seen(static_cast<size_t>(mask.keys));
  for (const Interval& row : mask.rows) {
    for (int64_t key = row[0]; key < row[1]; ++key) seen[static_cast<size_t>(key)] = true;
    for (int64_t key = row[2]; key < row[3]; ++key) seen[static_cast<size_t>(key)] = true;
  }
  return seen;
}

struct Case {
  Mask mask;
  int64_t heads, kv_heads, head_dim;
};

struct Reference {
  std::vector<double> out, log_sum_exp, dq, dk, dv;
  // How far the gradients may be from those above if probabilities, the gradients of scores, `out`
  // and dq are each rounded to bf16 once, and nothing else.
  std::vector<double> dq_error, dk_error, dv_error;
};

/// Half a unit in the last place of bf16, relative.
constexpr double kBf16Rounding = 1.0 / 256;

/// Softmax attention and its gradients, in double.
/// q, dout: [rows, heads, head_dim]; k, v: [keys, kv_heads, head_dim].
inline Reference attention_reference(const Case& c, double scale, const std::vector<double>& q,
                                     const std::vector<double>& k, const std::vector<double>& v,
                                     const std::vector<double>& dout) {
  const size_t d = static_cast<size_t>(c.head_dim), heads = static_cast<size_t>(c.heads);
  const size_t kv_heads = static_cast<size_t>(c.kv_heads), group = heads / kv_heads;
  const std::vector<double> like_q(q.size()), like_k(k.size());
  Reference r{like_q, {}, like_q, like_k, like_k, like_q, like_k, like_k};
  for (size_t row = 0; row < c.mask.rows.size(); ++row) {
    std::vector<size_t> keys;
    for (int part = 0; part < 2; ++part) {
      const auto [begin, end] =
          std::pair{c.mask.rows[row][2 * part], c.mask.rows[row][2 * part + 1]};
      for (int64_t key = begin; key < end; ++key) keys.push_back(static_cast<size_t>(key));
    }
    for (size_t h = 0; h < heads; ++h) {
      const size_t qo = (row * heads + h) * d;
      const auto key_offset = [&](size_t key) { return (key * kv_heads + h / group) * d; };
      std::vector<double> p(keys.size()), dp(keys.size());
      double largest = -INFINITY, sum = 0, delta = 0, delta_error = 0;
      for (size_t j = 0; j < keys.size(); ++j) {
        for (size_t i = 0; i < d; ++i) p[j] += scale * q[qo + i] * k[key_offset(keys[j]) + i];
        largest = std::max(largest, p[j]);
      }
      for (double& x : p) sum += x = std::exp(x - largest);
      r.log_sum_exp.push_back(keys.empty() ? -INFINITY : largest + std::log(sum));
      for (size_t j = 0; j < keys.size(); ++j) {
        p[j] /= sum;
        for (size_t i = 0; i < d; ++i) {
          r.out[qo + i] += p[j] * v[key_offset(keys[j]) + i];
          dp[j] += dout[qo + i] * v[key_offset(keys[j]) + i];
        }
        delta += p[j] * dp[j];
      }
      for (size_t i = 0; i < d; ++i) {
        delta_error += kBf16Rounding * std::abs(dout[qo + i] * r.out[qo + i]);
      }
      for (size_t j = 0; j < keys.size(); ++j) {
        const double ds = p[j] * (dp[j] - delta) * scale;
        const double ds_error = kBf16Rounding * std::abs(ds) + scale * p[j] * delta_error;
        const double p_error = kBf16Rounding * p[j];
        for (size_t i = 0; i < d; ++i) {
          const size_t ko = key_offset(keys[j]) + i;
          r.dq[qo + i] += ds * k[ko];
          r.dk[ko] += ds * q[qo + i];
          r.dv[ko] += p[j] * dout[qo + i];
          r.dq_error[qo + i] += ds_error * std::abs(k[ko]);
          r.dk_error[ko] += ds_error * std::abs(q[qo + i]);
          r.dv_error[ko] += p_error * std::abs(dout[qo + i]);
        }
      }
    }
  }
  for (size_t i = 0; i < r.dq.size(); ++i) r.dq_error[i] += kBf16Rounding * std::abs(r.dq[i]);
  return r;
}

/// The first element that is farther from what is expected than its error allows, with some room
/// for sums in f32; "" if there is none.
inline std::string beyond_error(const std::vector<double>& actual,
                                const std::vector<double>& expected,
                                const std::vector<double>& error) {
  constexpr double kRoom = 1.05, kSumsInF32 = 2e-6;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double allowed = kRoom * error[i] + kSumsInF32;
    if (std::abs(actual[i] - expected[i]) <= allowed) continue;
    return "element " + std::to_string(i) + " is " + std::to_string(actual[i]) + " instead of " +
           std::to_string(expected[i]) + " +- " + std::to_string(allowed);
  }
  return "";
}

}  // namespace percheron::kernel_test
