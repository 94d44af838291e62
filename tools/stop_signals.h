#pragma once

#include <atomic>

namespace percheron {

/// How often SIGINT or SIGTERM has come while a CatchStopSignals lived.
const std::atomic<int>& stop_signal_count();

/// Counts SIGINT and SIGTERM as long as it lives, for a run that polls the count: one asks for a
/// checkpoint and an end, two end at once. Before and after it the signals do what they did: they
/// end a program that nobody polls in. One at a time.
class CatchStopSignals {
 public:
  CatchStopSignals();
  ~CatchStopSignals();
  CatchStopSignals(const CatchStopSignals&) = delete;
  CatchStopSignals& operator=(const CatchStopSignals&) = delete;
};

}  // namespace percheron
