#pragma once

#include <google/protobuf/repeated_field.h>
#include <deque>

#include "proto/cluster.pb.h"
#include "tools/top_screen.h"

namespace percheron {

/// The last reports of one run, for the rates that two of them differ by.
class TopHistory {
 public:
  /// Rates are those of so long, where it was watched so long: jobs are counted when they end, and
  /// one may take seconds.
  static constexpr double kWindowSeconds = 10;
  /// A supervisor that works reports twice a second.
  static constexpr double kSilentSeconds = 5;

  /// `report` was read at `now`, in seconds. What another process of the supervisor counted is
  /// forgotten.
  void add(const proto::RunReport& report, double now);
  /// Null: shares are those since the start of the supervisor's process.
  const proto::RunReport* before() const {
    return reports_.size() < 2 ? nullptr : &reports_.front();
  }
  /// Since another report was read; 0 as long as that is no surprise.
  double silent_seconds(double now) const;

 private:
  std::deque<proto::RunReport> reports_;  // oldest first; each with other counts
  double changed_at_ = 0;                 // when the last was read
};

/// What is shown of a run, by its last report and those before it.
TopSnapshot top_snapshot(const proto::RunRecord& run, const TopHistory& history,
                         const google::protobuf::RepeatedPtrField<proto::NodeRecord>& nodes,
                         double now);

}  // namespace percheron
