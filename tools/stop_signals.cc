#include "tools/stop_signals.h"

#include <unistd.h>

#include <array>
#include <csignal>
#include <string_view>

namespace percheron {
namespace {

constexpr std::array<int, 2> kStopSignals{SIGINT, SIGTERM};

std::atomic<int> signals{0};
static_assert(std::atomic<int>::is_always_lock_free,
              "a signal handler may only touch lock-free atomics");

std::array<struct sigaction, kStopSignals.size()> before;

void say(std::string_view text) {
  // Nothing can be done about a failed write in a signal handler.
  if (write(STDERR_FILENO, text.data(), text.size()) < 0) return;
}

void on_signal(int number) {
  const int count = signals.fetch_add(1) + 1;
  if (count == 1) {
    say("\nstopping: a checkpoint at the next step, then the end; once more to quit at once\n");
  } else if (count >= 3) {
    _exit(128 + number);  // Whoever asks three times does not want to wait for an orderly end.
  }
}

}  // namespace

const std::atomic<int>& stop_signal_count() { return signals; }

CatchStopSignals::CatchStopSignals() {
  signals = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  for (size_t i = 0; i < kStopSignals.size(); ++i) sigaction(kStopSignals[i], &action, &before[i]);
}

CatchStopSignals::~CatchStopSignals() {
  for (size_t i = 0; i < kStopSignals.size(); ++i) sigaction(kStopSignals[i], &before[i], nullptr);
}

}  // namespace percheron
