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
  kTargetLeavesWithWork,          // a target that is to leave goes when it asks for more
  kRetiredTrainerComputes,        // the mailbox gives work to a trainer that has left
  kEvaluationKeepsTheDead,        // the share of a dead trainer is waited for
  kMessagesOvertake,              // between the same two ends
  kSecondConnectionIsNotNoticed,  // a worker that was started anew is taken for the old one
  kOrderIsNotKept,                // where it counts, what is fetched first is computed first
  kFullDiskIsNotNoticed,          // a checkpoint counts though it could not be written
  kCheckpointIsWrittenInPlace,    // so that a crash leaves half of it
  kEarlySumsStand,  // what a trainer put in for the others counts though more was to come
};

/// How a world is disturbed: chances, at each delivered message.
struct SimulatedFaults {
  double deaths = 0;  // of a worker or a node; a checkpoint finds no space with this chance, too
  double pauses = 0;  // an order to hold, which is taken back later
  double delays = 0;  // a message takes up to half a second more; links keep their order
  double cuts = 0;    // a worker or a node is cut off for a while, heard of or not
  double connections = 0;  // a worker is started anew before its loss is known
  double scales = 0;       // a worker is added, or one is taken out
  double crashes = 0;      // everything ends and goes on from the newest checkpoint
  double disk = 0;         // of a checkpoint, not a message: full, failing, slow
};

/// A small world: what the run is, how it is disturbed, and what is wrong with it.
struct SimulatedWorld {
  std::shared_ptr<const RunSetup> setup;
  int nodes = 1;              // workers are spread over them in turn
  uint64_t bytes_max = 1000;  // of features on a node; every micro-batch has one byte
  uint64_t prefetch = 0;      // micro-batches that a trainer may hold ahead
  SimulatedFaults faults = {};
  uint64_t seed = 1;
  Canary canary = Canary::kNone;
};

struct SimulatedOutcome {
  std::optional<Status> end;
  std::vector<std::string> violations;  // of the invariants, as an onlooker sees them
  int64_t deaths = 0, late_words = 0, pauses = 0, messages = 0;
  int64_t delays = 0, cuts = 0, connections = 0, crashes = 0;
  int64_t overlaps = 0;               // passes that began beside what followed another one
  int64_t added = 0, retired = 0;     // workers
  int64_t targets = 0, trainers = 0;  // that have a place, of the last life
  int64_t torn = 0;                   // crashes in the middle of a checkpoint
  int64_t unsaved = 0;                // checkpoints that could not be written
  int64_t rewinds = 0, membership_changes = 0, recomputed = 0, requeued = 0;
  int64_t steps = 0;
  int64_t early_sums = 0;  // that a trainer had put in before the step was computed
  int64_t taken_back = 0;  // of those, before the step was computed: more was to come
  int64_t refused = 0;     // newcomers whose parameters were other than the members'
  int64_t ahead = 0;       // micro-batches that a trainer held while it computed another
  int64_t unreadable = 0;  // whose features were gone
  RunSummary summary;      // of the last life

  /// What the life before has seen.
  void add_before(const SimulatedOutcome& before);
};

/// Runs the real supervisor and policies with simulated workers over a network that delays every
/// message by its own time (in order between two ends), under a virtual clock. Workers die at any
/// moment, are known to be dead later, and come back later still; words of the dead still arrive.
/// Others are added, and some taken out. After a crash the run begins again with what is on the
/// disk, and with the workers that had a place.
SimulatedOutcome simulate_run(const SimulatedWorld& world);

}  // namespace percheron
