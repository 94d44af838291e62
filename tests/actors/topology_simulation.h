#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/policy/assignment.h"

namespace percheron {

/// Who takes how long for what, and how far apart they are. Times in nanoseconds.
struct Topology {
  struct Place {
    int node = 0;
    int64_t micro_batch_ns = 0;  // its time for one, on average
  };
  std::string name;
  std::vector<Place> targets, trainers;
  int64_t per_step = 64;           // micro-batches
  int64_t steps = 24;              // of which the first four are not measured
  int64_t reduce_ns = 20'000'000;  // of the sums of a step, once all trainers have begun
  int64_t apply_ns = 5'000'000;
  int64_t latency_ns = 200'000;  // of a message between a worker and the run's supervisor
  int64_t fetch_ns = 4'000'000;  // of a trainer's link, for features of another node
  uint64_t prefetch = 4;         // micro-batches that a trainer may hold ahead
  double spread = 0.1;           // a micro-batch takes its time * (1 +- spread), evenly
  int64_t steps_in_memory = 2;   // features that a node has room for
  uint64_t seed = 1;
};

struct TopologyOutcome {
  bool finished = false;      // every step was committed, of its own micro-batches
  double per_second = 0;      // micro-batches
  double share_of_ideal = 0;  // ideal: everyone works all the time at its own rate
  double share_of_steps = 0;  // of what whole micro-batches and the ends of steps leave of that
  std::vector<double> busy;   // of each trainer: share of time with work, sums and updates included
  std::vector<int64_t> trained;  // micro-batches of each trainer
  int64_t steals = 0;
};

/// Runs the real policies (sampler, credits, mailbox, ledger) against each other under a virtual
/// clock. The same topology always gives the same outcome.
///
/// The ideal is honest about what a step is: its G micro-batches take at least
/// max(G / rate of all targets, G / rate of all trainers + reduce + apply), for all trainers sum
/// and update together and none can begin the next step before. `share_of_steps` divides by the
/// same with the time in which all trainers end G whole micro-batches in place of G / rate.
TopologyOutcome simulate_topology(const Topology& topology, Assignment assignment);

/// Five targets, three equal trainers: the published case of an uneven round robin.
Topology five_on_three();
/// Four targets, two trainers, all alike.
Topology balanced_four_on_two();
/// Four trainers, one of which takes four times as long.
Topology one_trainer_slow();
/// Trainers and targets of several kinds of machines.
Topology heterogeneous();
/// Features are made on one machine, and a trainer on each of three others takes as long to fetch
/// those of a micro-batch as to compute it.
Topology features_from_afar();
/// So many machines with a target and a trainer each; every tenth trainer is half as fast, others
/// differ by up to a fifth.
Topology many_nodes(int nodes);

}  // namespace percheron
