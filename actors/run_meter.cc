#include "actors/run_meter.h"

#include <algorithm>

namespace percheron {

RunMeter::RunMeter(int trainers) : trainers_(trainers) {}

void RunMeter::pass(double now) {
  now_.trainer_time += (now - now_.time) * trainers_;
  now_.time = now;
}

void RunMeter::set_trainers(int trainers, double now) {
  pass(now);
  trainers_ = trainers;
}

void RunMeter::start(double now) {
  pass(now);
  ends_.assign(1, now_);
}

void RunMeter::target_worked(int64_t tokens, double seconds) {
  now_.target_tokens += tokens;
  now_.target_seconds += seconds;
}

void RunMeter::trainer_worked(int64_t tokens, double seconds) {
  now_.trainer_tokens += tokens;
  now_.trainer_seconds += seconds;
}

void RunMeter::trainer_elsewhere(double seconds) { now_.elsewhere_seconds += seconds; }

void RunMeter::step_done(double now) {
  pass(now);
  ends_.push_back(now_);
  if (ends_.size() > kSteps + 1) ends_.pop_front();
}

RunMeter::Rates RunMeter::rates() const {
  Rates rates;
  if (ends_.size() < 2) return rates;
  const Totals& first = ends_.front();
  const Totals& last = ends_.back();
  const double elapsed = last.time - first.time;
  rates.step_seconds = last.time - ends_[ends_.size() - 2].time;
  rates.mean_step_seconds = elapsed / static_cast<double>(ends_.size() - 1);
  const auto per_second = [](int64_t count, double seconds) {
    return seconds > 0 ? static_cast<double>(count) / seconds : 0.0;
  };
  const int64_t trained = last.trainer_tokens - first.trainer_tokens;
  const double trainer_seconds = last.trainer_seconds - first.trainer_seconds;
  rates.tokens_per_second = per_second(trained, elapsed);
  rates.target_tokens_per_second = per_second(last.target_tokens - first.target_tokens,
                                              last.target_seconds - first.target_seconds);
  rates.trainer_tokens_per_second = per_second(trained, trainer_seconds);
  const double for_steps =
      last.trainer_time - first.trainer_time - (last.elsewhere_seconds - first.elsewhere_seconds);
  if (for_steps > 0) rates.wait_share = std::clamp(1.0 - trainer_seconds / for_steps, 0.0, 1.0);
  return rates;
}

}  // namespace percheron
