#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "actors/observer.h"

namespace percheron {

/// Passes everything on to several observers.
class ObserverList final : public RunObserver {
 public:
  /// `observer` hears of the first step, of every `every_steps`-th and of the last; of everything
  /// else always.
  void add(std::shared_ptr<RunObserver> observer, int64_t every_steps = 1);

  void on_step(const StepReport& report) override;
  void on_evaluation(const EvaluationReport& report) override;
  void on_checkpoint(const CheckpointReport& report) override;
  void on_state(const StateReport& report) override;
  void on_workers(const WorkersReport& report) override;
  void on_event(const std::string& text) override;
  void on_end(const RunSummary& summary) override;

 private:
  struct Entry {
    std::shared_ptr<RunObserver> observer;
    int64_t every_steps;
  };
  std::vector<Entry> observers_;
};

}  // namespace percheron
