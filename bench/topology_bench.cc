// How well the assignments of micro-batches to trainers use the trainers: the real policies under a
// virtual clock, so a run is reproducible and the machine does not matter.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/actors/topology_simulation.h"

namespace percheron {
namespace {

constexpr std::pair<Assignment, const char*> kAssignments[] = {
    {Assignment::kStealing, "stealing"},
    {Assignment::kFixed, "fixed"},
    {Assignment::kPerTrainerQueue, "per_trainer_queue"},
    {Assignment::kRoundRobin, "round_robin"},
};

// Of each trainer, or of the least busy, the average and the most busy one.
std::string busy_text(const std::vector<double>& busy) {
  constexpr size_t kListed = 6;
  std::string text;
  if (busy.size() <= kListed) {
    for (double share : busy) text += fmt::format("{}{:.0f}", text.empty() ? "" : " ", 100 * share);
    return text;
  }
  const auto [least, most] = std::ranges::minmax(busy);
  const double sum = std::accumulate(busy.begin(), busy.end(), 0.0);
  return fmt::format("{:.0f} to {:.0f}, mean {:.0f}", 100 * least, 100 * most,
                     100 * sum / static_cast<double>(busy.size()));
}

bool print_line(const Topology& topology, Assignment assignment, const std::string& name) {
  const TopologyOutcome outcome = simulate_topology(topology, assignment);
  if (!outcome.finished) {
    std::fprintf(stderr, "%s, %s: it did not end as planned\n", topology.name.c_str(),
                 name.c_str());
    return false;
  }
  std::printf("%-36s %-20s %14.1f %9.1f %9.1f  %s\n", topology.name.c_str(), name.c_str(),
              outcome.per_second, 100 * outcome.share_of_ideal, 100 * outcome.share_of_steps,
              busy_text(outcome.busy).c_str());
  std::fflush(stdout);
  return true;
}

int print_table() {
  std::printf("%-36s %-20s %14s %9s %9s  %s\n", "topology", "assignment", "micro-batch/s",
              "% ideal", "% steps", "busy % of each trainer");
  for (const Topology& topology : {five_on_three(), balanced_four_on_two(), one_trainer_slow(),
                                   heterogeneous(), many_nodes(100), many_nodes(1000)}) {
    for (const auto& [assignment, name] : kAssignments) {
      if (!print_line(topology, assignment, name)) return 1;
    }
  }
  // What trainers that hold nothing ahead lose, where features come from other machines.
  for (Topology topology : {features_from_afar(), five_on_three(), balanced_four_on_two(),
                            one_trainer_slow(), heterogeneous(), many_nodes(100)}) {
    for (uint64_t ahead : {0, 1, 4}) {
      topology.prefetch = ahead;
      if (!print_line(topology, Assignment::kStealing, fmt::format("stealing, {} ahead", ahead))) {
        return 1;
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace percheron

int main() { return percheron::print_table(); }
