// What a node does for its own disk.

#include <utility>
#include <vector>

#include "actors/node/node_daemon.h"
#include "actors/node/process_output.h"
#include "base/log.h"

namespace percheron {
namespace {

constexpr double kRotateSeconds = 1;
constexpr double kRotateAgainSeconds = 60;  // after a failure
// Other nodes have told of their runs by then.
constexpr double kFirstForgetSeconds = 5;
constexpr double kForgetSeconds = 600;

}  // namespace

void NodeDaemon::look_after_files() {
  if (now() >= rotate_at_)
    rotate_at_ = now() + (rotate_logs() ? kRotateSeconds : kRotateAgainSeconds);
  if (forget_at_ == 0) forget_at_ = now() + kFirstForgetSeconds;
  if (now() >= forget_at_) {
    forget_runs();
    forget_at_ = now() + kForgetSeconds;
  }
}

bool NodeDaemon::rotate_logs() {
  bool well = true;
  std::vector<ChildPtr> children;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, child] : children_) children.push_back(child);
  }
  for (const ChildPtr& child : children) {
    const Result<bool> rotated = logs_.rotate_if_full(child->log);
    if (!rotated.ok()) {
      log_warning("{} does not rotate: {}", child->log, rotated.status().message());
      well = false;
    } else if (*rotated) {
      // One that is ending may share the file with the one in its place.
      for (const ChildPtr& writer : children) {
        if (writer->log == child->log) writer->process->signal(kReopenSignal);
      }
    }
  }
  if (options_.own_log.empty()) return well;
  Result<bool> rotated = logs_.rotate_if_full(options_.own_log);
  if (rotated.ok() && !*rotated) return well;
  const Status opened = rotated.ok() ? append_output_to(options_.own_log) : rotated.status();
  if (opened.ok()) return well;
  log_warning("{} does not rotate: {}", options_.own_log, opened.message());
  return false;
}

void NodeDaemon::forget_runs() {
  RunCleanup::Busy busy;
  if (peers()) {
    for (const proto::RunRecord& record : peers()->runs()) {
      if (!run_is_over(record.report().state())) busy.insert(record.id());
    }
  }
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, child] : children_) busy.insert(child->endpoint.run());
    cleanup_.forget(book_, busy);
  }
  // What was set aside has no reader any more, and may be large.
  const Status removed = logs_.remove_set_aside();
  if (!removed.ok()) log_warning("old logs can't be removed: {}", removed.message());
}

}  // namespace percheron
