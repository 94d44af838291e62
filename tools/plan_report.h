#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "data/plan_simulation.h"

namespace percheron {

/// What `percheron plan` found out; parts that it did not look at are empty.
struct PlanReport {
  Seeds seeds;
  PlanOptions options;                 // budgets; its order is not read
  int64_t micro_batches_per_step = 1;  // of the length mix
  std::optional<PackingArithmetic> packing;
  std::vector<EpochOrderSimulation> orders;
  std::vector<int64_t> counts;  // batches of each bucket
  std::vector<BatchOrderSimulation> batch_orders;
};

/// As tables for people, with the published figures beside those that they are known for.
std::string plan_report(const PlanReport& report);

/// The same for programs.
nlohmann::ordered_json plan_json(const PlanReport& report);

}  // namespace percheron
