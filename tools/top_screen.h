#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tools/screen_line.h"

namespace percheron {

/// One target or trainer of a run, as a person sees it.
struct TopWorker {
  std::string node;    // empty in a single process
  std::string name;    // "target 0"
  std::string device;  // "cuda:0"
  std::string state;   // "compute", "features", ...; "lost" for one that is being started again
  double busy_share = 0, wait_share = 0;  // of its time, lately
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
  std::string message;        // of the state; may be empty
  bool works = true;          // else rates are of no interest
  double silent_seconds = 0;  // of its supervisor, where that is long
  int64_t step = 0, steps_total = 0;
  double loss = 0, simulated_acceptance_length = 0, held_out_acceptance_length = 0;  // 0: not yet
  double tokens_per_second = 0, eta_seconds = 0;
  double capture_samples_per_second = 0, train_samples_per_second = 0;  // capacities
  std::string bottleneck;                                               // in words
  std::vector<TopWorker> workers;
  std::vector<TopHome> homes;
  int64_t queued_later = 0;
  uint64_t store_bytes = 0, store_bytes_max = 0;
  int64_t steals_total = 0;
  std::vector<std::pair<std::pair<int, int>, int64_t>> steals;  // thief and victim, largest first
  int64_t worker_restarts = 0, supervisor_restarts = 0, lease_expirations = 0;
};

/// "[#####...............]"
std::string share_bar(double share, int width);

/// A run in lines none wider than `width` columns. Workers beyond what `height` leaves room for are
/// counted in one line; 0: no limit. A height that is too small for the rest is not kept to.
std::vector<ScreenLine> top_screen(const TopSnapshot& snapshot, int width, int height = 0);

}  // namespace percheron
