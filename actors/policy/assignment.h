#pragma once

namespace percheron {

/// Who computes which micro-batch of a step.
enum class Assignment {
  kStealing,  // whoever is free: the oldest ticket of its own home, else of the fullest other home
  kFixed,     // micro-batch index modulo trainers, each trainer in index order: bit-reproducible
  // For comparison. No trainer takes what is another's, so a slow or overfed one holds up all.
  kRoundRobin,       // number of the target that made it modulo trainers
  kPerTrainerQueue,  // micro-batch index modulo trainers, in the order in which they come
};

}  // namespace percheron
