#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/observer.h"
#include "actors/run_setup.h"
#include "base/status.h"

namespace percheron {

/// Bugs that a simulation plants, to show that its checkers see them.
enum class Canary {
  kNone,
  kTargetLeaseIsForgotten,     // a lost target's micro-batch is not handed out again
  kStepGoesOnAfterALoss,       // the mailbox keeps what a dead trainer had computed
  kPartialSumsAreKept,         // a survivor does not drop its sums
  kStaleLeaseCounts,           // the mailbox takes the word of an owner whose lease was taken away
  kOldTicketIsComputed,        // a trainer computes a ticket of an older membership
  kNewcomerIsNotRestored,      // a trainer computes with the parameters it had when it died
  kChecksumIsNotCompared,      // and says that they are the others'
  kFeaturesGoBeforeTheCommit,  // a step's features are freed when they are computed
  kByteLimitIsIgnored,
  kEvaluationKeepsTheDead,  // the share of a dead trainer is waited for
  kRetiredTrainerComputes,  // the mailbox gives work to a trainer that has left
};

/// A small world: what the run is, how it is disturbed, and what is wrong with it.
struct SimulatedWorld {
  std::shared_ptr<const RunSetup> setup;
  int nodes = 1;              // workers are spread over them in turn
  uint64_t bytes_max = 1000;  // of features on a node; every micro-batch has one byte
  double deaths = 0;          // chance of a death at each delivered message
  double scales = 0;          // likewise of a worker that is added, or of one that is taken out
  double pauses = 0;          // likewise of an order to hold, which is taken back later
  uint64_t seed = 1;
  Canary canary = Canary::kNone;
};

struct SimulatedOutcome {
  std::optional<Status> end;
  std::vector<std::string> violations;  // of the invariants, as an onlooker sees them
  int64_t added = 0, retired = 0;
  int64_t deaths = 0, late_words = 0, pauses = 0, messages = 0;
  int64_t steps = 0;
  int64_t refused = 0;  // newcomers whose parameters were other than the members'
  RunSummary summary;
};

/// Runs the real supervisor and policies with simulated workers over a network that delays every
/// message by its own time (in order between two ends), under a virtual clock. Workers die at any
/// moment, are known to be dead later, and come back later still; words of the dead still arrive.
/// Others are added, and some of them taken out again.
SimulatedOutcome simulate_run(const SimulatedWorld& world);

}  // namespace percheron
