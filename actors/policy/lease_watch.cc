#include "actors/policy/lease_watch.h"

#include <algorithm>

namespace percheron {
namespace {

int64_t key_of(WorkerKind kind, int number) {
  return int64_t{3} * number + (kind == WorkerKind::kTrainer ? 1 : 0);
}

int64_t key_of_update(int trainer) { return int64_t{3} * trainer + 2; }

}  // namespace

void LeaseWatch::add(int64_t key, const Overdue& work, double now) {
  if (seconds_ <= 0) return;
  std::deque<Overdue>& held = held_[key];
  held.push_back(work);
  if (held.size() == 1) watch_.watch(key, now);
}

void LeaseWatch::end(int64_t key) {
  held_.erase(key);
  watch_.forget(key);
}

void LeaseWatch::leased(WorkerKind kind, int number, MicroBatchId id, double now) {
  const int64_t key = key_of(kind, number);
  // What a trainer held before was taken from it: that is settled by no word of its own.
  if (kind == WorkerKind::kTrainer) end(key);
  add(key, {kind, number, id}, now);
}

void LeaseWatch::leased_ahead(int trainer, MicroBatchId id, double now) {
  add(key_of(WorkerKind::kTrainer, trainer), {WorkerKind::kTrainer, trainer, id}, now);
}

void LeaseWatch::settled(WorkerKind kind, int number, MicroBatchId id, double now) {
  const int64_t key = key_of(kind, number);
  const auto held = held_.find(key);
  if (held == held_.end()) return;
  const auto settled = std::ranges::find(held->second, id, &Overdue::id);
  if (settled == held->second.end()) return;
  const auto first = held->second.begin();
  const bool at_it = kind == WorkerKind::kTarget || settled == first;
  held->second.erase(at_it ? first : settled, settled + 1);
  if (held->second.empty()) return end(key);
  if (at_it) watch_.watch(key, now);
}

void LeaseWatch::settled(WorkerKind kind, int number) { end(key_of(kind, number)); }

void LeaseWatch::updates(int trainer, int64_t step, double now) {
  end(key_of_update(trainer));  // A later update takes its place.
  add(key_of_update(trainer), {WorkerKind::kTrainer, trainer, {}, step}, now);
}

void LeaseWatch::updated(int trainer) { end(key_of_update(trainer)); }

void LeaseWatch::lost(WorkerKind kind, int number) {
  settled(kind, number);
  if (kind == WorkerKind::kTrainer) updated(number);
}

void LeaseWatch::clear() {
  held_.clear();
  watch_.forget_all();
}

std::vector<LeaseWatch::Overdue> LeaseWatch::take_overdue(double now) {
  std::vector<Overdue> overdue;
  for (int64_t key : watch_.take_silent(now)) {
    overdue.push_back(held_.at(key).front());
    held_.erase(key);
  }
  return overdue;
}

}  // namespace percheron
