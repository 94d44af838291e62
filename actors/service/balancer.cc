#include "actors/service/balancer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "actors/service/placement_change.h"

namespace percheron {
namespace {

// The last of `from` that is not in `others` too: what has both roles can't be moved.
std::optional<PlacedDevice> last_of(const std::vector<PlacedDevice>& from,
                                    const std::vector<PlacedDevice>& others) {
  const auto found = std::find_if(from.rbegin(), from.rend(), [&](const PlacedDevice& placed) {
    return std::find(others.begin(), others.end(), placed) == others.end();
  });
  return found == from.rend() ? std::nullopt : std::optional(*found);
}

}  // namespace

Balancer::Balancer(std::string name, proto::Run run, std::shared_ptr<const RunActivity> activity,
                   Ways ways, const Clock& clock)
    : name_(std::move(name)),
      run_(std::move(run)),
      activity_(std::move(activity)),
      ways_(std::move(ways)),
      clock_(clock),
      policy_(run_.placement().balance_settle_seconds()) {}

Balancer::~Balancer() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    ended_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void Balancer::begin() {
  thread_ = std::thread([this] {
    std::unique_lock lock(mutex_);
    while (!ended_.wait_for(lock, std::chrono::seconds(1), [this] { return ending_; })) {
      lock.unlock();
      tick();
      lock.lock();
    }
  });
}

BalanceMeasure Balancer::measure(const RunActivitySnapshot& snapshot) {
  Totals now;
  for (const WorkerActivity& target : snapshot.targets) now.captured += target.samples;
  for (const WorkerActivity& trainer : snapshot.trainers) now.trained += trainer.samples;
  window_.push_back(now);
  if (window_.size() > RunActivity::kWindowSamples) window_.pop_front();
  const Totals& then = window_.front();
  const int64_t trained = now.trained - then.trained;
  BalanceMeasure measure;
  measure.targets = snapshot.targets_here;
  measure.trainers = snapshot.trainers_here;
  measure.capture_samples_per_second = snapshot.capture_samples_per_second;
  measure.train_samples_per_second = snapshot.train_samples_per_second;
  if (trained > 0) {
    measure.captured_share = std::min(
        1.0, static_cast<double>(now.captured - then.captured) / static_cast<double>(trained));
  }
  return measure;
}

void Balancer::tick() {
  const double now = static_cast<double>(clock_.monotonic_ns()) * 1e-9;
  const ClusterPlacement placement = ways_.placement();
  const BalanceMeasure seen = measure(activity_->snapshot());
  const std::optional<RoleSplit> then = policy_.consider(seen, now);
  // Who is lost comes back: nobody takes its role meanwhile.
  if (seen.targets != static_cast<int>(placement.targets.size()) ||
      seen.trainers != static_cast<int>(placement.trainers.size())) {
    return;
  }
  if (!then || (tried_at_ > 0 && now - tried_at_ < run_.placement().balance_settle_seconds())) {
    return;
  }
  propose(placement, split_now(seen), *then);
  if (run_.placement().auto_balance()) tried_at_ = now;
}

void Balancer::propose(const ClusterPlacement& placement, const RoleSplit& now,
                       const RoleSplit& then) {
  const bool to_trainer = then.targets < now.targets;
  const std::optional<PlacedDevice> device = to_trainer
                                                 ? last_of(placement.targets, placement.trainers)
                                                 : last_of(placement.trainers, placement.targets);
  if (!device) return;
  proto::ScaleRun order;
  (to_trainer ? order.mutable_remove_targets() : order.mutable_remove_trainers())
      ->Add(device->text());
  (to_trainer ? order.mutable_add_trainers() : order.mutable_add_targets())->Add(device->text());
  std::string sentence = fmt::format(
      "{} targets and {} trainers can do {:.1f} samples/s, {} and {} could do {:.1f}", now.targets,
      now.trainers, now.samples_per_second, then.targets, then.trainers, then.samples_per_second);
  const Result<PlacementChange> change = read_change(order, device->node);
  const Result<ClusterPlacement> next =
      change.ok() ? change_placement(placement, *change, run_) : change.status();
  const bool moves = next.ok() && run_.placement().auto_balance();
  if (!next.ok()) {
    sentence += ", but " + next.status().message();
  } else if (moves) {
    sentence += fmt::format(": {} becomes a {}", device->text(), to_trainer ? "trainer" : "target");
  } else {
    sentence += fmt::format(": percheron scale {0} --targets {1}{3} --trainers {2}{3}", name_,
                            to_trainer ? '-' : '+', to_trainer ? '+' : '-', device->text());
  }
  if (moves || std::exchange(said_, fmt::format("{}/{}", then.targets, then.trainers)) !=
                   fmt::format("{}/{}", then.targets, then.trainers)) {
    ways_.say(sentence);
  }
  if (moves) ways_.scale(order);
}

}  // namespace percheron
