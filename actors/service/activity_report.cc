#include "actors/service/activity_report.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace percheron {
namespace {

void add_steals(const RunActivitySnapshot& seen, proto::RunReport& report) {
  std::vector<std::pair<std::pair<int, int>, int64_t>> most(seen.steals.begin(), seen.steals.end());
  std::ranges::stable_sort(most, std::greater(), [](const auto& steal) { return steal.second; });
  if (most.size() > kReportedSteals) most.resize(kReportedSteals);
  report.clear_steal_pairs();
  for (const auto& [pair, count] : most) {
    proto::StealCount& steal = *report.add_steal_pairs();
    steal.set_thief(pair.first);
    steal.set_victim(pair.second);
    steal.set_count(count);
  }
}

void add_homes(const MailboxState& mailbox, proto::RunReport& report) {
  report.clear_homes();
  for (const auto& [home, queue] : mailbox.homes) {
    if (report.homes_size() == kReportedHomes) return;
    proto::HomeState& state = *report.add_homes();
    state.set_home(home);
    state.set_tickets(queue.tickets);
    state.set_bytes(queue.bytes);
  }
}

void add_actor(const RunActivitySnapshot& seen, proto::ActorState& actor) {
  const auto& workers = actor.role() == proto::ActorMessage::TARGET ? seen.targets : seen.trainers;
  const auto number = static_cast<size_t>(actor.number());
  if (number >= workers.size()) return;  // The run has not begun.
  const WorkerActivity& worker = workers[number];
  double busy = 0, waited = 0;
  for (size_t i = 0; i < kOccupations; ++i) {
    const auto occupation = static_cast<Occupation>(i);
    if (occupation == Occupation::kIdle) continue;
    (is_waiting(occupation) ? waited : busy) += worker.seconds[occupation];
  }
  actor.set_occupation(std::string(occupation_name(worker.now)));
  actor.set_busy_seconds(busy);
  actor.set_wait_seconds(waited);
  actor.set_samples(worker.samples);
}

}  // namespace

void add_step(const StepReport& step, proto::RunReport& report) {
  report.set_step(step.step);
  report.set_steps_total(step.steps_total);
  report.set_epoch(step.epoch);
  report.set_loss(step.loss);
  report.set_simulated_acceptance_length(step.simulated_acceptance_length);
  report.set_tokens_per_second(step.tokens_per_second);
  report.set_target_tokens_per_second(step.target_tokens_per_second);
  report.set_trainer_tokens_per_second(step.trainer_tokens_per_second);
  report.set_wait_share(step.wait_share);
  report.set_feature_bytes(step.pool_bytes);
  report.set_feature_bytes_max(step.pool_bytes_max);
  report.set_steals(step.steals_total);
  report.set_eta_seconds(step.eta_seconds);
}

void add_activity(const RunActivitySnapshot& seen, proto::RunReport& report) {
  report.set_activity_seconds(seen.seconds);
  report.set_phase(std::string(phase_word(seen.phase)));
  report.set_bottleneck(bottleneck_words(seen.bottleneck, seen.window));
  report.set_queued_later(static_cast<int64_t>(seen.mailbox.queued_later));
  report.set_capture_samples_per_second(seen.capture_samples_per_second);
  report.set_train_samples_per_second(seen.train_samples_per_second);
  int64_t expirations = 0;
  for (const int64_t count : seen.lease_expirations) expirations += count;
  report.set_lease_expirations(expirations);
  const StoreState& store = seen.store;
  if (store.bytes_max > 0) {  // as it is now, not as at the last step
    report.set_feature_bytes(store.reserved_bytes + store.published_bytes + store.lingering_bytes);
    report.set_feature_bytes_max(store.bytes_max);
  }
  add_homes(seen.mailbox, report);
  add_steals(seen, report);
  for (proto::WorkerState& worker : *report.mutable_workers()) {
    for (proto::ActorState& actor : *worker.mutable_actors()) add_actor(seen, actor);
  }
}

}  // namespace percheron
