#include "actors/node/successor.h"

#include <algorithm>

#include "actors/node/run_book.h"
#include "actors/service/placement_change.h"

namespace percheron {

bool has_moved(const proto::RunRecord& record, const proto::RunRecord& other) {
  return other.id() == record.id() && other.submitted() == record.submitted() &&
         other.generation() > record.generation();
}

bool is_later_twin(const proto::RunRecord& own, const proto::RunRecord& theirs) {
  if (own.id() != theirs.id() || own.submitted() == theirs.submitted()) return false;
  if (run_is_over(own.report().state()) || run_is_over(theirs.report().state())) return false;
  return own.submitted() > theirs.submitted();
}

Succession succession_of(const proto::RunRecord& run, const std::set<std::string>& there) {
  const Result<ClusterPlacement> placement = read_placement(run.config(), run.node());
  if (!placement.ok()) return {"", placement.status().message()};
  const auto lives = [&](const PlacedDevices& placed) { return there.count(placed.node) != 0; };
  if (std::ranges::none_of(placement->targets, lives)) return {"", "no target is left without it"};
  if (std::ranges::none_of(placement->trainers, lives)) {
    return {"", "no trainer is left without it"};
  }
  std::vector<std::string> nodes = placement->nodes();
  const size_t all = nodes.size();
  std::erase_if(nodes, [&](const std::string& node) { return there.count(node) == 0; });
  if (run.config().mailbox().assignment() == proto::Mailbox::FIXED && nodes.size() != all) {
    return {"", "mailbox.assignment: fixed needs its devices"};
  }
  return {*std::ranges::min_element(nodes), ""};
}

proto::RunRecord taken_over(const proto::RunRecord& run, const std::string& self,
                            const std::string& why) {
  proto::RunRecord taken = run;
  // Devices without a node are of the one that had the run.
  const Result<ClusterPlacement> placement = read_placement(run.config(), run.node());
  if (placement.ok()) set_placement(*placement, *taken.mutable_config());
  taken.set_node(self);
  taken.set_generation(run.generation() + 1);
  taken.clear_taken_from();
  taken.mutable_report()->set_message(why);
  if (!taken.released()) taken.mutable_report()->set_state(proto::RunReport::QUEUED);
  return taken;
}

void SuccessorWatch::tick(double now) {
  if (!ticked_ || now - last_ >= gap_seconds_) awake_since_ = now;
  ticked_ = true;
  last_ = now;
}

bool SuccessorWatch::is_due(const proto::RunRecord& run, double silent_seconds, double now) const {
  const double wait = run.config().cluster().successor_seconds();
  if (wait <= 0 || run_is_over(run.report().state()) || run.released()) return false;
  return ticked_ && std::min(silent_seconds, now - awake_since_) >= wait;
}

}  // namespace percheron
