#include "actors/policy/lease_watch.h"

namespace percheron {
namespace {

int64_t key_of(WorkerKind kind, int number) {
  return int64_t{2} * number + (kind == WorkerKind::kTrainer ? 1 : 0);
}

}  // namespace

void LeaseWatch::leased(WorkerKind kind, int number, MicroBatchId id, double now) {
  if (seconds_ <= 0) return;
  const int64_t key = key_of(kind, number);
  held_[key] = {kind, number, id};
  watch_.watch(key, now);
}

void LeaseWatch::settled(WorkerKind kind, int number) {
  const int64_t key = key_of(kind, number);
  held_.erase(key);
  watch_.forget(key);
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
