#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace percheron {

/// Finds who owes a sign of life and has given none for too long. Whoever asks it does so at
/// regular times; where it was itself held up between two of them, nobody is blamed for that time.
/// Times are seconds of one clock.
class SilenceWatch {
 public:
  struct Limits {
    double silence_seconds = 3;
    double first_seconds = 3;  // until the first sign of life
    double gap_seconds = 1;    // between two calls of take_silent(): the watch itself was held up
  };

  explicit SilenceWatch(Limits limits) : limits_(limits) {}

  /// From now on `who` owes signs of life.
  void watch(int64_t who, double now) { due_[who] = now + limits_.first_seconds; }
  /// No effect where `who` is not watched.
  void heard(int64_t who, double now);
  /// All are given their full time again.
  void excuse(double now);
  void forget(int64_t who) { due_.erase(who); }
  void forget_all() { due_.clear(); }

  /// Those that are silent for too long; each is told once and then forgotten.
  std::vector<int64_t> take_silent(double now);
  bool watches(int64_t who) const { return due_.count(who) != 0; }

 private:
  const Limits limits_;
  std::map<int64_t, double> due_;  // when each is taken for dead
  double asked_ = 0;               // last
  bool asked_before_ = false;
};

}  // namespace percheron
