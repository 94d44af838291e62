#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "base/status.h"
#include "tools/screen_line.h"
#include "tools/top_view.h"

namespace percheron {

/// Whether a person sits there who can be shown a screen: both standard streams are a terminal, and
/// not a dumb one.
bool has_screen();
bool output_is_terminal();
/// Columns of standard output, where it is a terminal; else `otherwise`.
int output_columns(int otherwise);

/// The terminal as a screen, through ncurses. It is as it was before when the object ends, or the
/// program by SIGINT, SIGTERM, SIGHUP, SIGQUIT, a failed check or a crash. One at a time, used by
/// one thread.
class Terminal {
 public:
  /// kFailedPrecondition for a kind of terminal ($TERM) that is not known.
  static Result<std::unique_ptr<Terminal>> open();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  int width() const;
  int height() const;
  void show(const std::vector<ScreenLine>& lines);
  /// The next key; nothing when none comes within `wait`, or the size has changed.
  std::optional<TopKey> read_key(std::chrono::milliseconds wait);
  /// The signal that asks the program to end, or 0. A terminal that is gone counts as SIGHUP.
  int end_signal() const;

 private:
  Terminal() = default;

  bool coloured_ = false;
  bool gone_ = false;
};

}  // namespace percheron
