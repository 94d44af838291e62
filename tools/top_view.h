#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "proto/cluster.pb.h"
#include "tools/screen_line.h"
#include "tools/top_snapshot.h"

namespace percheron {

/// What a person presses.
enum class TopKey {
  kNext,
  kPrevious,
  kPause,
  kResume,
  kSnapshot,
  kYes,
  kHelp,
  kQuit,
  kEscape,
  kOther,
};

/// An order that a person gives to a run.
struct TopOrder {
  std::string run;
  proto::RunOrder::Kind kind = proto::RunOrder::PAUSE;

  bool operator==(const TopOrder&) const = default;
};

/// Everything that `percheron top` decides: what is on the screen, and what a key does. Knows no
/// terminal and no network.
class TopView {
 public:
  /// `run`: the only one to show; empty = all.
  explicit TopView(std::string run = {}) : only_(std::move(run)) {}

  /// What the node says, at `now` in seconds.
  void update(const proto::ControlReply& reply, double now);
  /// The node does not answer, and why; what it said before stays on the screen.
  void lost(const std::string& why);
  /// What became of the order that key() gave.
  void answered(const Result<std::string>& answer);

  /// An order to be given now, which is asked for first where it holds a run up.
  std::optional<TopOrder> key(TopKey key);
  bool quits() const { return quits_; }

  /// At most `height` lines of at most `width` columns. The last one says which keys there are.
  std::vector<ScreenLine> render(int width, int height, double now) const;
  /// All that there is to say, for a file or a program's standard output: no keys.
  std::vector<ScreenLine> text(int width, double now) const;

 private:
  enum class Mode { kRuns, kHelp, kConfirm };

  const proto::RunRecord* selected() const;
  void select(int step);
  std::optional<TopOrder> order(const TopOrder& order);
  ScreenLine title(double now) const;
  ScreenLine run_line(const proto::RunRecord& run, size_t width) const;
  void add_runs(std::vector<ScreenLine>& lines, size_t room, size_t width) const;
  std::vector<ScreenLine> body(int width, int height, double now) const;
  ScreenLine footer(int width) const;

  const std::string only_;
  Mode mode_ = Mode::kRuns;
  bool quits_ = false;
  std::optional<proto::ControlReply> reply_;  // the last
  double replied_at_ = 0;
  std::string lost_;  // why the node does not answer; empty: it does
  std::map<std::string, TopHistory> histories_;
  std::string asked_;                  // the run that a question is about
  std::string selected_;               // the run's id; empty: there is none
  std::optional<TopOrder> under_way_;  // not answered yet
  std::string said_;                   // what became of the last order
  bool said_bad_ = false;
};

}  // namespace percheron
