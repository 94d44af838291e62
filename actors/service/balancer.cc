#include "actors/service/balancer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/service/placement_change.h"

namespace percheron {
namespace {

bool overlaps(const std::vector<PlacedDevices>& places, const PlacedDevices& placed) {
  return std::ranges::any_of(places, [&](const auto& other) { return other.overlaps(placed); });
}

// The devices of the last target that has them to itself: what has both roles can't be moved.
std::vector<PlacedDevices> movable_target(const ClusterPlacement& placement) {
  const std::vector<PlacedDevices>& targets = placement.targets;
  const auto found = std::find_if(targets.rbegin(), targets.rend(), [&](const auto& placed) {
    return !overlaps(placement.trainers, placed);
  });
  return found == targets.rend() ? std::vector<PlacedDevices>() : std::vector{*found};
}

// The last trainers whose devices can hold a target together; empty where there are none.
std::vector<PlacedDevices> movable_trainers(const ClusterPlacement& placement, size_t count) {
  std::map<std::pair<std::string, DeviceKind>, std::vector<PlacedDevices>> alike;
  for (auto placed = placement.trainers.rbegin(); placed != placement.trainers.rend(); ++placed) {
    if (overlaps(placement.targets, *placed)) continue;
    std::vector<PlacedDevices>& some = alike[{placed->node, placed->devices.front().kind}];
    if (overlaps(some, *placed)) return {};  // several trainers of one device
    some.insert(some.begin(), *placed);
    if (some.size() == count) return some;
  }
  return {};
}

std::string joined(const std::vector<std::string>& texts) {
  return fmt::format("{}", fmt::join(texts, ","));
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
  measure.devices_per_target = static_cast<int>(run_.placement().tensor_parallel());
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
  const std::vector<PlacedDevices> moved =
      to_trainer
          ? movable_target(placement)
          : movable_trainers(placement, static_cast<size_t>(run_.placement().tensor_parallel()));
  if (moved.empty()) return;
  const std::vector<std::string> devices = device_texts(moved);
  proto::ScaleRun order;
  for (const std::string& device : devices) {
    (to_trainer ? order.mutable_remove_targets() : order.mutable_remove_trainers())
        ->Add(std::string(device));
    (to_trainer ? order.mutable_add_trainers() : order.mutable_add_targets())
        ->Add(std::string(device));
  }
  std::string sentence = fmt::format(
      "{} targets and {} trainers can do {:.1f} samples/s, {} and {} could do {:.1f}", now.targets,
      now.trainers, now.samples_per_second, then.targets, then.trainers, then.samples_per_second);
  const Result<PlacementChange> change = read_change(order, moved.front().node, run_);
  const Result<ClusterPlacement> next =
      change.ok() ? change_placement(placement, *change, run_) : change.status();
  const bool moves = next.ok() && run_.placement().auto_balance();
  if (!next.ok()) {
    sentence += ", but " + next.status().message();
  } else if (moves) {
    const bool one = devices.size() == 1;
    sentence +=
        fmt::format(": {} {} {}", fmt::join(devices, ", "), one ? "becomes a" : "become",
                    to_trainer ? (one ? "trainer" : "trainers") : (one ? "target" : "a target"));
  } else {
    sentence += fmt::format(": percheron scale {0} --targets {1}{3} --trainers {2}{3}", name_,
                            to_trainer ? '-' : '+', to_trainer ? '+' : '-', joined(devices));
  }
  if (moves || std::exchange(said_, fmt::format("{}/{}", then.targets, then.trainers)) !=
                   fmt::format("{}/{}", then.targets, then.trainers)) {
    ways_.say(sentence);
  }
  if (moves) ways_.scale(order);
}

}  // namespace percheron
