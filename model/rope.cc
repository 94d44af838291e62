#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace percheron {
namespace {

// The 0.1 m ln(s) + 1 of Peng et al. 2023 (YaRN), 1 where nothing is stretched.
double yarn_mscale(double factor, double m) {
  return factor <= 1.0 ? 1.0 : 0.1 * m * std::log(factor) + 1.0;
}

// Between low and high rotations the frequencies go over from extrapolation to interpolation.
void apply_yarn(const RopeConfig& rope, int64_t head_dim, std::vector<double>& frequencies) {
  const double dim = static_cast<double>(head_dim);
  const double original = static_cast<double>(rope.original_max_position_embeddings);
  const auto correction = [&](double rotations) {
    return dim * std::log(original / (rotations * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(rope.theta));
  };
  double low = correction(rope.beta_fast), high = correction(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = ramp * frequencies[i] / rope.factor + (1.0 - ramp) * frequencies[i];
  }
}

void apply_llama3(const RopeConfig& rope, std::vector<double>& frequencies) {
  const double original = static_cast<double>(rope.original_max_position_embeddings);
  for (double& frequency : frequencies) {
    const double rotations = original * frequency / (2.0 * std::numbers::pi);
    const double mix = std::clamp(
        (rotations - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0,
        1.0);
    frequency = (1.0 - mix) * frequency / rope.factor + mix * frequency;
  }
}

}  // namespace

std::vector<double> rope_inverse_frequencies(const RopeConfig& rope, int64_t head_dim,
                                             int64_t max_position_embeddings, int64_t length) {
  const double dim = static_cast<double>(head_dim);
  double theta = rope.theta;
  if (rope.type == RopeType::kDynamic && length > max_position_embeddings) {
    const double stretch =
        rope.factor * static_cast<double>(length) / static_cast<double>(max_position_embeddings) -
        (rope.factor - 1.0);
    theta *= std::pow(stretch, dim / (dim - 2.0));
  }
  std::vector<double> frequencies(static_cast<size_t>(head_dim / 2));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = std::pow(theta, -2.0 * static_cast<double>(i) / dim);
  }
  switch (rope.type) {
    case RopeType::kDefault:
    case RopeType::kDynamic: break;
    case RopeType::kLinear:
      for (double& frequency : frequencies) frequency /= rope.factor;
      break;
    case RopeType::kLlama3: apply_llama3(rope, frequencies); break;
    case RopeType::kYarn: apply_yarn(rope, head_dim, frequencies); break;
  }
  return frequencies;
}

double rope_attention_scaling(const RopeConfig& rope) {
  if (rope.type != RopeType::kYarn) return 1.0;
  if (rope.attention_factor.has_value()) return *rope.attention_factor;
  const double mscale = rope.mscale.value_or(0.0), all_dim = rope.mscale_all_dim.value_or(0.0);
  if (mscale != 0.0 && all_dim != 0.0) {
    return yarn_mscale(rope.factor, mscale) / yarn_mscale(rope.factor, all_dim);
  }
  return yarn_mscale(rope.factor, 1.0);
}

RopeTable::RopeTable(Device& device, const RopeConfig& rope, int64_t head_dim,
                     int64_t max_position_embeddings)
    : device_(device),
      rope_(rope),
      head_dim_(head_dim),
      max_position_embeddings_(max_position_embeddings) {}

Status RopeTable::reserve(Context& context, int64_t positions) {
  if (positions <= positions_) return ok_status();
  constexpr int64_t kPositionsLeast = 1024;
  const int64_t rows = std::max({positions, 2 * positions_, kPositionsLeast});
  host_cos_.clear();
  host_sin_.clear();
  append_rows(rows, 0);
  PERCHERON_RETURN_IF_ERROR(upload(context));
  positions_ = rows;
  return ok_status();
}

Result<std::vector<int32_t>> RopeTable::reserve_documents(Context& context,
                                                          std::span<const int64_t> lengths) {
  int64_t longest = 0;
  for (const int64_t length : lengths) longest = std::max(longest, length);
  std::vector<int32_t> first_rows(lengths.size(), 0);
  if (rope_.type != RopeType::kDynamic || longest <= max_position_embeddings_) {
    PERCHERON_RETURN_IF_ERROR(reserve(context, longest));
    return first_rows;
  }
  // Rows of the unchanged base first, then a section for each longer document.
  host_cos_.clear();
  host_sin_.clear();
  append_rows(max_position_embeddings_, 0);
  for (size_t d = 0; d < lengths.size(); ++d) {
    if (lengths[d] <= max_position_embeddings_) continue;
    first_rows[d] = static_cast<int32_t>(static_cast<int64_t>(host_cos_.size()) / (head_dim_ / 2));
    append_rows(lengths[d], lengths[d]);
  }
  PERCHERON_RETURN_IF_ERROR(upload(context));
  positions_ = max_position_embeddings_;
  return first_rows;
}

void RopeTable::append_rows(int64_t rows, int64_t length) {
  const std::vector<double> frequencies =
      rope_inverse_frequencies(rope_, head_dim_, max_position_embeddings_, length);
  const double scaling = rope_attention_scaling(rope_);
  for (int64_t position = 0; position < rows; ++position) {
    for (const double frequency : frequencies) {
      const double angle = static_cast<double>(position) * frequency;
      host_cos_.push_back(static_cast<float>(std::cos(angle) * scaling));
      host_sin_.push_back(static_cast<float>(std::sin(angle) * scaling));
    }
  }
}

Status RopeTable::upload(Context& context) {
  // Earlier work may still read the tables that are replaced here.
  PERCHERON_RETURN_IF_ERROR(context.stream.wait_idle());
  const int64_t half = head_dim_ / 2;
  const int64_t rows = static_cast<int64_t>(host_cos_.size()) / half;
  PERCHERON_ASSIGN_OR_RETURN(cos_, device_.make_tensor(DType::kF32, {rows, half}));
  PERCHERON_ASSIGN_OR_RETURN(sin_, device_.make_tensor(DType::kF32, {rows, half}));
  device_.copy_bytes(context.stream, cos_.view().data(), host_cos_.data(), cos_.view().bytes());
  device_.copy_bytes(context.stream, sin_.view().data(), host_sin_.data(), sin_.view().bytes());
  return context.stream.wait_idle();
}

}  // namespace percheron
