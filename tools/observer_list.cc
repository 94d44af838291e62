#include "tools/observer_list.h"

#include <utility>

namespace percheron {

void ObserverList::add(std::shared_ptr<RunObserver> observer, int64_t every_steps) {
  observers_.push_back({std::move(observer), every_steps});
}

void ObserverList::on_step(const StepReport& report) {
  for (const Entry& entry : observers_) {
    const bool due = report.step == 1 || report.step == report.steps_total ||
                     report.step % entry.every_steps == 0;
    if (due) entry.observer->on_step(report);
  }
}

void ObserverList::on_evaluation(const EvaluationReport& report) {
  for (const Entry& entry : observers_) entry.observer->on_evaluation(report);
}

void ObserverList::on_checkpoint(const CheckpointReport& report) {
  for (const Entry& entry : observers_) entry.observer->on_checkpoint(report);
}

void ObserverList::on_state(const StateReport& report) {
  for (const Entry& entry : observers_) entry.observer->on_state(report);
}

void ObserverList::on_workers(const WorkersReport& report) {
  for (const Entry& entry : observers_) entry.observer->on_workers(report);
}

void ObserverList::on_event(const std::string& text) {
  for (const Entry& entry : observers_) entry.observer->on_event(text);
}

void ObserverList::on_end(const RunSummary& summary) {
  for (const Entry& entry : observers_) entry.observer->on_end(summary);
}

}  // namespace percheron
