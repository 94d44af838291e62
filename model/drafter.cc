#include "model/drafter.h"

#include "model/dflash.h"
#include "model/eagle3.h"

namespace percheron {
namespace {

void add_to(std::vector<double>& sums, const std::vector<double>& values) {
  if (sums.size() < values.size()) sums.resize(values.size(), 0.0);
  for (size_t i = 0; i < values.size(); ++i) sums[i] += values[i];
}

}  // namespace

void StepSums::add(const StepSums& other) {
  loss += other.loss;
  weight += other.weight;
  tokens += other.tokens;
  supervised += other.supervised;
  add_to(position_loss, other.position_loss);
  add_to(position_weight, other.position_weight);
  add_to(position_correct, other.position_correct);
  add_to(position_count, other.position_count);
  run_sum += other.run_sum;
  run_count += other.run_count;
}

double StepSums::simulated_acceptance_length() const {
  return run_count > 0 ? 1.0 + run_sum / run_count : 1.0;
}

Result<std::unique_ptr<Drafter>> make_drafter(Context& context, const DrafterConfig& config,
                                              const TargetParts& target,
                                              std::vector<int32_t> draft_ids, DType compute_dtype,
                                              uint64_t seed) {
  if (config.kind == DrafterKind::kEagle3) {
    PERCHERON_ASSIGN_OR_RETURN(
        std::unique_ptr<Drafter> drafter,
        Eagle3Drafter::make(context, config, target, std::move(draft_ids), compute_dtype, seed));
    return drafter;
  }
  PERCHERON_ASSIGN_OR_RETURN(
      std::unique_ptr<Drafter> drafter,
      DflashDrafter::make(context, config, target, std::move(draft_ids), compute_dtype, seed));
  return drafter;
}

}  // namespace percheron
