#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "actors/observer.h"
#include "actors/run_control.h"
#include "proto/control.pb.h"

namespace percheron {

/// What operators ask of a run, and the answers that they wait for: an order is answered when what
/// it asks for is so. Orders may be repeated, and given by several at once. Thread-safe.
class OrderBook {
 public:
  using Reply = std::function<void(const proto::RunOrderReply&)>;

  /// `control` is borrowed.
  OrderBook(RunControl& control, Reply reply) : control_(control), reply_(std::move(reply)) {}

  void take(const proto::RunOrder& order);

  /// As RunEnvironment::stop_signals counts: a stop before the actors run counts too.
  const std::atomic<int>& stop_signals() const { return stop_signals_; }
  /// Whether an end without a checkpoint was asked for.
  bool stops_now() const { return stop_signals_ > 1; }
  /// Whether the run ends in order to go on some day, with its devices given back meanwhile.
  bool releases_devices() const { return releases_devices_; }

  // What the run does.
  void on_state(const StateReport& report);
  void on_checkpoint(const CheckpointReport& report);
  void on_checkpoint_kept(int64_t step, const std::string& directory);
  /// The run is over: whoever waits is told so, with `text` where he wanted an end.
  void on_end(const std::string& text, int64_t step);

 private:
  struct Waiting {
    uint64_t request = 0;
    proto::RunOrder::Kind kind = proto::RunOrder::PAUSE;
    bool for_end = false;
  };

  void answer(uint64_t request, const std::string& text, int64_t step,
              const std::string& error = "");
  template <class Wanted>
  void answer_those(Wanted wanted, const std::string& text, int64_t step,
                    const std::string& error = "");

  RunControl& control_;
  const Reply reply_;
  std::atomic<int> stop_signals_{0};
  std::atomic<bool> releases_devices_{false};
  std::mutex mutex_;
  StateReport state_;
  std::vector<Waiting> waiting_;
};

/// Tells an OrderBook and another observer what happens.
class AnsweringObserver : public RunObserver {
 public:
  /// Both are borrowed.
  AnsweringObserver(RunObserver& next, OrderBook& orders) : next_(next), orders_(orders) {}

  void on_step(const StepReport& report) override { next_.on_step(report); }
  void on_evaluation(const EvaluationReport& report) override { next_.on_evaluation(report); }
  void on_checkpoint(const CheckpointReport& report) override {
    next_.on_checkpoint(report);
    orders_.on_checkpoint(report);
  }
  void on_checkpoint_kept(int64_t step, const std::string& directory) override {
    next_.on_checkpoint_kept(step, directory);
    orders_.on_checkpoint_kept(step, directory);
  }
  void on_event(const std::string& text) override { next_.on_event(text); }
  void on_state(const StateReport& report) override {
    next_.on_state(report);
    orders_.on_state(report);
  }
  void on_workers(const WorkersReport& report) override { next_.on_workers(report); }
  void on_end(const RunSummary& summary) override { next_.on_end(summary); }

 private:
  RunObserver& next_;
  OrderBook& orders_;
};

}  // namespace percheron
