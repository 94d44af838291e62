#include "kernels/thread_rendezvous.h"

#include <algorithm>
#include <chrono>
#include <sstream>

namespace percheron {

Status Rendezvous::enter(int rank, const std::function<void()>& publish,
                         std::optional<double> timeout_seconds) {
  std::unique_lock lock(mutex_);
  if (aborted_) return unavailable(*aborted_);
  publish();
  const uint64_t round = arrive(rank);
  const auto over = [&] { return aborted_ || round_ != round; };
  if (!timeout_seconds) {
    changed_.wait(lock, over);
  } else if (!changed_.wait_for(lock, std::chrono::duration<double>(*timeout_seconds), over)) {
    std::ostringstream text;
    text << late_ranks() << " did not come to an all-reduce within " << *timeout_seconds << " s";
    abort_locked(text.str());
  }
  // The round may have ended before the abort: then what was published is whole.
  return round_ != round ? ok_status() : unavailable(*aborted_);
}

void Rendezvous::leave(int rank) {
  std::unique_lock lock(mutex_);
  const uint64_t round = arrive(rank);
  changed_.wait(lock, [&] { return round_ != round; });
}

void Rendezvous::abort(const std::string& why) {
  const std::lock_guard lock(mutex_);
  abort_locked(why);
}

void Rendezvous::abort_locked(const std::string& why) {
  if (!aborted_) aborted_ = why;
  changed_.notify_all();
}

uint64_t Rendezvous::arrive(int rank) {
  const uint64_t round = round_;
  here_[static_cast<size_t>(rank)] = true;
  if (++arrived_ == size()) {
    arrived_ = 0;
    std::fill(here_.begin(), here_.end(), false);
    ++round_;
    changed_.notify_all();
  }
  return round;
}

std::string Rendezvous::late_ranks() const {
  std::string text;
  for (size_t rank = 0; rank < here_.size(); ++rank) {
    if (here_[rank]) continue;
    text += (text.empty() ? "rank " : ", rank ") + std::to_string(rank);
  }
  return text + " of " + std::to_string(here_.size());
}

}  // namespace percheron
