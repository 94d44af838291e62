#include "actors/policy/lease_watch.h"

namespace percheron {
namespace {

int64_t key_of(WorkerKind kind, int number) {
  return int64_t{3} * number + (kind == WorkerKind::kTrainer ? 1 : 0);
}

int64_t key_of_update(int trainer) { return int64_t{3} * trainer + 2; }

}  // namespace

void LeaseWatch::begin(int64_t key, const Overdue& work, double now) {
  if (seconds_ <= 0) return;
  held_[key] = work;
  watch_.watch(key, now);
}

void LeaseWatch::end(int64_t key) {
  held_.erase(key);
  watch_.forget(key);
}

void LeaseWatch::leased(WorkerKind kind, int number, MicroBatchId id, double now) {
  begin(key_of(kind, number), {kind, number, id}, now);
}

void LeaseWatch::settled(WorkerKind kind, int number) { end(key_of(kind, number)); }

void LeaseWatch::updates(int trainer, int64_t step, double now) {
  begin(key_of_update(trainer), {WorkerKind::kTrainer, trainer, {}, step}, now);
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
    overdue.push_back(held_.at(key));
    held_.erase(key);
  }
  return overdue;
}

}  // namespace percheron
