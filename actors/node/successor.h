#pragma once

#include <set>
#include <string>

#include "proto/cluster.pb.h"

namespace percheron {

/// Whether `other` is the same run as `record` on a later node. Two nodes may call different runs
/// the same.
bool has_moved(const proto::RunRecord& record, const proto::RunRecord& other);

/// Whether another node has a run of the same id, which was there before `own`; neither is over.
bool is_later_twin(const proto::RunRecord& own, const proto::RunRecord& theirs);

/// Who goes on with a run whose node is lost.
struct Succession {
  std::string node;     // empty: nobody, the run waits for its node
  std::string missing;  // why it waits: "no trainer is left without it"
};

/// The lowest node, by name, of those of the run that are `there`, where they have a target and a
/// trainer. With mailbox.assignment: fixed every device is needed.
Succession succession_of(const proto::RunRecord& run, const std::set<std::string>& there);

/// The run as its new node keeps it. Devices keep the names of their nodes.
proto::RunRecord taken_over(const proto::RunRecord& run, const std::string& self,
                            const std::string& why);

/// When a node starts the successors of lost runs. It is told of time regularly; where it was held
/// up between two of these, stopped or suspended, nobody's silence before counts: every node gets
/// the full time anew. Times are seconds of one clock.
class SuccessorWatch {
 public:
  explicit SuccessorWatch(double gap_seconds = 2) : gap_seconds_(gap_seconds) {}

  void tick(double now);
  /// Whether it is time for the successor of a run whose node was heard `silent_seconds` ago.
  bool is_due(const proto::RunRecord& run, double silent_seconds, double now) const;

 private:
  const double gap_seconds_;
  bool ticked_ = false;
  double last_ = 0, awake_since_ = 0;
};

}  // namespace percheron
