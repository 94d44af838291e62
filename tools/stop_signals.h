#pragma once

#include <atomic>

namespace percheron {

/// Counts SIGINT and SIGTERM from here on: one asks for a checkpoint and an end, two end at once.
const std::atomic<int>& count_stop_signals();

}  // namespace percheron
