// How well the assignments keep trainers busy, by the simulation that bench/topology_bench prints.
// Under a virtual clock, so nothing here depends on the machine.

#include <gtest/gtest.h>

#include "tests/actors/topology_simulation.h"

namespace percheron {
namespace {

TopologyOutcome run(const Topology& topology, Assignment assignment = Assignment::kStealing) {
  const TopologyOutcome outcome = simulate_topology(topology, assignment);
  EXPECT_TRUE(outcome.finished) << topology.name;
  return outcome;
}

// TorchSpec: five producers tied to three consumers, i modulo three, load them 2:2:1.
TEST(Topology, RoundRobinLeavesTheThirdTrainerOfFiveOnThreeHalfIdle) {
  const TopologyOutcome fault = run(five_on_three(), Assignment::kRoundRobin);
  const auto load = [&](size_t trainer) {
    return static_cast<double>(fault.trained[trainer]) / static_cast<double>(fault.trained[2]);
  };
  EXPECT_NEAR(load(0), 2, 0.15);
  EXPECT_NEAR(load(1), 2, 0.15);
  EXPECT_LT(fault.busy[2], 0.6);
  EXPECT_LT(fault.share_of_ideal, 0.86);

  const TopologyOutcome stealing = run(five_on_three());
  for (double busy : stealing.busy) EXPECT_GT(busy, 0.95);
  EXPECT_GT(stealing.share_of_ideal, 0.95);
}

TEST(Topology, BalancedRunsReach97PercentOfTheIdeal) {
  EXPECT_GE(run(balanced_four_on_two()).share_of_ideal, 0.97);
}

TEST(Topology, OneSlowTrainerLeaves95PercentOfTheIdeal) {
  EXPECT_GE(run(one_trainer_slow()).share_of_ideal, 0.95);
  EXPECT_LT(run(one_trainer_slow(), Assignment::kRoundRobin).share_of_ideal, 0.4);
  EXPECT_LT(run(one_trainer_slow(), Assignment::kPerTrainerQueue).share_of_ideal, 0.4);
}

TEST(Topology, MachinesOfSeveralKindsReach95PercentOfTheIdeal) {
  EXPECT_GE(run(heterogeneous()).share_of_ideal, 0.95);
}

// The link of a trainer takes as long as its device: by turns it reaches half of the rate.
TEST(Topology, FeaturesFromAfarAreFetchedWhileOthersAreComputed) {
  Topology topology = features_from_afar();
  topology.prefetch = 0;
  EXPECT_LT(run(topology).share_of_ideal, 0.5);
  for (uint64_t ahead : {1, 4}) {
    topology.prefetch = ahead;
    EXPECT_GT(run(topology).share_of_ideal, 0.85);
  }
}

TEST(Topology, LookingAheadHoldsUpNobody) {
  for (Topology topology : {five_on_three(), balanced_four_on_two(), one_trainer_slow(),
                            heterogeneous(), many_nodes(60)}) {
    topology.prefetch = 0;
    const double without = run(topology).share_of_ideal;
    for (uint64_t ahead : {1, 2, 4, 8}) {
      topology.prefetch = ahead;
      EXPECT_GT(run(topology).share_of_ideal, without - 0.01) << topology.name << " " << ahead;
    }
  }
}

TEST(Topology, ManyMachinesReach95PercentOfTheIdeal) {
  EXPECT_GE(run(many_nodes(60)).share_of_ideal, 0.95);
}

TEST(Topology, EveryAssignmentEndsEveryTopologyWithItsOwnMicroBatches) {
  for (const Topology& topology :
       {five_on_three(), balanced_four_on_two(), one_trainer_slow(), heterogeneous()}) {
    for (const Assignment assignment :
         {Assignment::kFixed, Assignment::kRoundRobin, Assignment::kPerTrainerQueue}) {
      run(topology, assignment);
    }
  }
}

}  // namespace
}  // namespace percheron
