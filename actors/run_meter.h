#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

namespace percheron {

/// Counts work and tells rates over the last steps. Times in seconds since any start.
class RunMeter {
 public:
  explicit RunMeter(int trainers);

  /// The first step is open: what came before, as held-out features, is no waiting for steps.
  void start(double now);
  void target_worked(int64_t tokens, double seconds);
  /// Forward and backward, or, with 0 tokens, reduction and update.
  void trainer_worked(int64_t tokens, double seconds);
  /// A trainer's time in evaluations and snapshots: neither work on steps nor waiting.
  void trainer_elsewhere(double seconds);
  /// So many trainers compute from here on.
  void set_trainers(int trainers, double now);
  /// A step is over.
  void step_done(double now);

  struct Rates {
    double step_seconds = 0;               // the last step
    double mean_step_seconds = 0;          // over the last steps
    double tokens_per_second = 0;          // of the run
    double target_tokens_per_second = 0;   // while targets were busy
    double trainer_tokens_per_second = 0;  // while trainers were busy
    double wait_share = 0;                 // of the trainers' time for steps
  };
  /// Over the last kSteps steps.
  Rates rates() const;
  double target_busy_seconds() const { return now_.target_seconds; }
  double trainer_busy_seconds() const { return now_.trainer_seconds; }

 private:
  static constexpr size_t kSteps = 50;
  struct Totals {
    double time = 0, trainer_time = 0;  // the latter of all trainers together
    int64_t target_tokens = 0, trainer_tokens = 0;
    double target_seconds = 0, trainer_seconds = 0, elsewhere_seconds = 0;
  };

  void pass(double now);

  int trainers_;
  Totals now_;
  std::deque<Totals> ends_;  // at step ends; the first is the start; empty before it
};

}  // namespace percheron
