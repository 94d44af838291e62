#include "actors/policy/trainer_pace.h"

#include <algorithm>

namespace percheron {

void TrainerPace::regroup(const std::vector<int>& members) {
  for (auto& [number, trainer] : trainers_) {
    trainer.since = -1;
    trainer.held = 0;
  }
  members_.clear();
  for (int member : members) members_.push_back(&trainers_[member]);
  unknown_ = static_cast<size_t>(
      std::ranges::count_if(members_, [](const Trainer* t) { return t->pace == 0; }));
  left_ = -1;
}

void TrainerPace::takes(int trainer, int64_t now_ns) {
  Trainer& t = trainers_[trainer];
  if (t.held++ == 0) t.since = now_ns;
}

void TrainerPace::ends(int trainer, int64_t now_ns) {
  Trainer& t = trainers_[trainer];
  const int64_t took = now_ns - t.since;
  const bool measured = t.since >= 0 && took > 0;
  t.since = -1;
  if (!measured) return;
  if (t.pace == 0) --unknown_;
  t.recent[t.next] = took;
  t.next = (t.next + 1) % kRemembered;
  t.known = std::min(t.known + 1, kRemembered);
  std::array<int64_t, kRemembered> sorted = t.recent;
  const auto end = sorted.begin() + static_cast<std::ptrdiff_t>(t.known);
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(t.known / 2);
  std::nth_element(sorted.begin(), middle, end);
  t.pace = *middle;
}

void TrainerPace::holds(int trainer, size_t micro_batches, int64_t now_ns) {
  Trainer& t = trainers_[trainer];
  t.held = micro_batches;
  t.since = micro_batches > 0 && now_ns > 0 ? now_ns : -1;
}

int64_t TrainerPace::pace_ns(int trainer) const {
  const auto known = trainers_.find(trainer);
  return known == trainers_.end() ? 0 : known->second.pace;
}

int64_t TrainerPace::free_at(const Trainer& trainer, int64_t now_ns) {
  if (trainer.held == 0) return now_ns;
  const int64_t ahead = static_cast<int64_t>(trainer.held - 1) * trainer.pace;
  if (trainer.since < 0) return now_ns + trainer.pace + ahead;
  const int64_t due = trainer.since + trainer.pace;
  // Who is late is expected to be as late again.
  return ahead + (due >= now_ns ? due : now_ns + (now_ns - due));
}

bool TrainerPace::refresh(int64_t left, int64_t now_ns) {
  if (unknown_ > 0 || members_.empty()) return false;
  const bool known = left_ >= 0 && left <= left_ && 2 * left > left_ && now_ns < end_ns_;
  if (known) return false;
  left_ = left;
  end_ns_ = earliest_end(left, now_ns);
  return true;
}

// The least end by which all trainers together have time for `left` whole micro-batches.
int64_t TrainerPace::earliest_end(int64_t left, int64_t now_ns) {
  double rate = 0, busy = 0;
  int64_t slowest = 0;
  fastest_ = members_.front()->pace;
  for (const Trainer* trainer : members_) {
    const auto pace = static_cast<double>(trainer->pace);
    rate += 1 / pace;
    busy += static_cast<double>(free_at(*trainer, now_ns) - now_ns) / pace;
    slowest = std::max(slowest, trainer->pace);
    fastest_ = std::min(fastest_, trainer->pace);
  }
  visited_ += static_cast<int64_t>(members_.size());
  const auto enough = [&](int64_t end) {
    int64_t done = 0;
    visited_ += static_cast<int64_t>(members_.size());
    for (const Trainer* trainer : members_) {
      done += std::max<int64_t>(0, end - free_at(*trainer, now_ns)) / trainer->pace;
      if (done >= left) return true;
    }
    return false;
  };
  int64_t low = now_ns;
  int64_t high =
      now_ns + static_cast<int64_t>((static_cast<double>(left) + busy) / rate) + slowest + 1;
  const int64_t exact_to = std::max<int64_t>(1, fastest_ / 16);
  while (high - low > exact_to) {
    const int64_t middle = low + (high - low) / 2;
    (enough(middle) ? high : low) = middle;
  }
  return high;
}

bool TrainerPace::too_late(int trainer, int64_t now_ns) const {
  if (left_ < 0 || unknown_ > 0) return false;
  const auto known = trainers_.find(trainer);
  if (known == trainers_.end()) return false;
  // Less than a quarter of a micro-batch is not worth an idle trainer: no pace is known so well.
  return free_at(known->second, now_ns) + known->second.pace > end_ns_ + fastest_ / 4;
}

}  // namespace percheron
