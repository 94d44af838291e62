#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "actors/run_metrics.h"

namespace percheron {

/// One worker of a run, as a person sees it.
struct TopWorker {
  std::string node;    // empty in a single process
  std::string name;    // "target 0"
  std::string device;  // "cuda:0"
  std::string state;   // "compute", "features", ...; "lost" for one that is being started again
  double busy_share = 0, wait_share = 0;  // of its time since the screen before
  double samples_per_second = 0;
  double power_watts = -1, utilization = -1;  // of its device; negative: it does not tell
};

struct TopHome {
  int home = 0;
  int64_t tickets = 0;
  uint64_t bytes = 0;
};

/// Everything that one screen of `percheron top` shows of one run.
struct TopSnapshot {
  std::string run, state;
  int64_t step = 0, steps_total = 0;
  double loss = 0, simulated_acceptance_length = 0, held_out_acceptance_length = 0;  // 0: not yet
  double tokens_per_second = 0, eta_seconds = 0;
  double capture_samples_per_second = 0, train_samples_per_second = 0;  // capacities
  std::string bottleneck;                                               // in words
  std::vector<TopWorker> workers;
  std::vector<TopHome> homes;
  size_t queued_later = 0;
  uint64_t store_bytes = 0, store_bytes_max = 0;
  std::vector<std::pair<std::pair<int, int>, int64_t>> steals;  // thief and victim
  int64_t restarts = 0, lease_expirations = 0;
};

/// What is shown of a run between two looks at it. `before` may be null: shares are then those
/// since the beginning. `seconds`: between the two, or since the beginning.
TopSnapshot top_snapshot(const RunStatus& status, const std::string& state,
                         const RunActivitySnapshot& now, const RunActivitySnapshot* before,
                         double seconds);

inline constexpr int kTopWidthMin = 60;

/// The lines of the screen, none wider than `width` columns (kTopWidthMin at least) and none with
/// control characters. Workers beyond what `height` leaves room for are counted in one line; 0: no
/// limit.
std::vector<std::string> top_screen(const TopSnapshot& snapshot, int width, int height = 0);

}  // namespace percheron
