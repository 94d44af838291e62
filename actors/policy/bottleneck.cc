#include "actors/policy/bottleneck.h"

#include <fmt/format.h>

#include <array>
#include <utility>

namespace percheron {
namespace {

constexpr std::array<std::string_view, kBottlenecks> kNames = {
    "unknown",  "targets",   "trainers",   "store_bytes", "shared_device",
    "step_end", "reduction", "evaluation", "checkpoint"};

// Targets that wait for room for at least this part of the time that trainers wait for features are
// not slow: they are kept from working.
constexpr double kRoomPart = 0.5;

// What trainers lose to each cause, as a share of their time.
double loss(Bottleneck cause, const RunTimes& window) {
  const auto share = [&](Occupation occupation) { return share_of(window.trainers, occupation); };
  switch (cause) {
    case Bottleneck::kTargets:
    case Bottleneck::kStoreBytes: return share(Occupation::kFeatures);
    case Bottleneck::kSharedDevice:
      // On one device a trainer without features waits for the device, too: the target has it.
      return share(Occupation::kDevice) +
             (window.shared_device ? share(Occupation::kFeatures) : 0.0);
    case Bottleneck::kStepEnd: return share(Occupation::kStepEnd);
    case Bottleneck::kReduction: return share(Occupation::kReduce) + share(Occupation::kUpdate);
    case Bottleneck::kEvaluation: return share(Occupation::kEvaluation);
    case Bottleneck::kCheckpoint: return share(Occupation::kCheckpoint);
    case Bottleneck::kUnknown:
    case Bottleneck::kTrainers: return 0;
  }
  return 0;
}

// Why the features are late.
Bottleneck cause_of_late_features(const RunTimes& window) {
  const double room = share_of(window.targets, Occupation::kRoom);
  if (room >= kRoomPart * share_of(window.trainers, Occupation::kFeatures)) {
    return Bottleneck::kStoreBytes;
  }
  return window.shared_device ? Bottleneck::kSharedDevice : Bottleneck::kTargets;
}

}  // namespace

std::string_view bottleneck_name(Bottleneck bottleneck) {
  return kNames[static_cast<size_t>(bottleneck)];
}

double share_of(const OccupationSeconds& seconds, Occupation occupation) {
  const double total = seconds.total() - seconds[Occupation::kIdle];
  return total > 0 ? seconds[occupation] / total : 0;
}

Bottleneck BottleneckJudge::candidate(const RunTimes& window) const {
  if (window.trainers.total() - window.trainers[Occupation::kIdle] <= 0) {
    return Bottleneck::kUnknown;
  }
  Bottleneck worst = Bottleneck::kTrainers;
  double most = 0;
  for (const Bottleneck cause :
       {cause_of_late_features(window), Bottleneck::kSharedDevice, Bottleneck::kStepEnd,
        Bottleneck::kReduction, Bottleneck::kEvaluation, Bottleneck::kCheckpoint}) {
    const double lost = loss(cause, window);
    if (lost <= most) continue;
    most = lost;
    worst = cause;
  }
  const bool named = current_ != Bottleneck::kTrainers && current_ != Bottleneck::kUnknown;
  if (most < (named ? kLossLeave : kLossEnter)) return Bottleneck::kTrainers;
  if (named && worst != current_ && most < loss(current_, window) + kLead) return current_;
  return worst;
}

Bottleneck BottleneckJudge::judge(const RunTimes& window) {
  const Bottleneck next = candidate(window);
  if (next == current_ || next == Bottleneck::kUnknown) {
    rival_times_ = 0;
    return current_;
  }
  rival_times_ = next == rival_ ? rival_times_ + 1 : 1;
  rival_ = next;
  if (rival_times_ >= kTimes) {
    current_ = next;
    rival_times_ = 0;
  }
  return current_;
}

std::string bottleneck_words(Bottleneck bottleneck, const RunTimes& window) {
  const auto trainers = [&](Occupation occupation) {
    return fmt::format("{:.0f}%", 100 * share_of(window.trainers, occupation));
  };
  const auto targets = [&](Occupation occupation) {
    return fmt::format("{:.0f}%", 100 * share_of(window.targets, occupation));
  };
  switch (bottleneck) {
    case Bottleneck::kUnknown: return "not known yet";
    case Bottleneck::kTargets:
      return fmt::format(
          "the targets: trainers wait {} of their time for features, targets compute {} of theirs; "
          "give placement.targets another device, or keep features for later epochs "
          "(features.cache_memory_bytes_max)",
          trainers(Occupation::kFeatures), targets(Occupation::kCompute));
    case Bottleneck::kTrainers:
      return fmt::format(
          "the trainers: they compute {} of their time, targets wait {} of theirs for room; give "
          "placement.trainers another device",
          trainers(Occupation::kCompute), targets(Occupation::kRoom));
    case Bottleneck::kStoreBytes:
      return fmt::format(
          "features.bytes_max: trainers wait {} of their time for features while targets wait {} "
          "of theirs for room; raise it",
          trainers(Occupation::kFeatures), targets(Occupation::kRoom));
    case Bottleneck::kSharedDevice:
      return fmt::format(
          "the device that targets and trainers share: trainers compute {} of their time, targets "
          "{} of theirs, and each waits for the other; give them devices of their own",
          trainers(Occupation::kCompute), targets(Occupation::kCompute));
    case Bottleneck::kStepEnd:
      return fmt::format(
          "the ends of steps: trainers wait {} of their time for the last micro-batches of a step, "
          "while {} tickets of later steps are queued; raise train.micro_batches_per_step",
          trainers(Occupation::kStepEnd), window.queued_later);
    case Bottleneck::kReduction:
      return fmt::format(
          "the reductions and updates: {} and {} of the trainers' time; raise "
          "train.micro_batches_per_step",
          trainers(Occupation::kReduce), trainers(Occupation::kUpdate));
    case Bottleneck::kEvaluation:
      return fmt::format(
          "the evaluations: {} of the trainers' time; have fewer (evaluate.every_steps, 0 = only "
          "evaluate.at_steps), or lower evaluate.conversations_max",
          trainers(Occupation::kEvaluation));
    case Bottleneck::kCheckpoint:
      return fmt::format(
          "the checkpoints: trainers wait {} of their time for them; raise checkpoint.every_steps, "
          "or give output.directory a faster disk",
          trainers(Occupation::kCheckpoint));
  }
  return "";
}

}  // namespace percheron
