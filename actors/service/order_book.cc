#include "actors/service/order_book.h"

#include <algorithm>
#include <utility>

namespace percheron {

void OrderBook::answer(uint64_t request, const std::string& text, int64_t step,
                       const std::string& error) {
  proto::RunOrderReply reply;
  reply.set_request(request);
  if (!error.empty()) reply.set_error(error);
  reply.set_text(text);
  reply.set_step(step);
  reply_(reply);
}

// The caller holds the mutex.
template <class Wanted>
void OrderBook::answer_those(Wanted wanted, const std::string& text, int64_t step,
                             const std::string& error) {
  for (const Waiting& waiting : waiting_) {
    if (wanted(waiting)) answer(waiting.request, text, step, error);
  }
  std::erase_if(waiting_, wanted);
}

void OrderBook::take(const proto::RunOrder& order) {
  const std::lock_guard lock(mutex_);
  Waiting waiting{order.request(), order.kind(), false};
  switch (order.kind()) {
    case proto::RunOrder::PAUSE:
      if (order.release_devices()) {
        releases_devices_ = true;
        waiting.for_end = true;
        stop_signals_ = std::max(1, stop_signals_.load());
        break;
      }
      if (state_.state == RunState::kPaused) {
        return answer(order.request(), "is paused", state_.step);
      }
      control_.order(RunOrder::kPause);
      break;
    case proto::RunOrder::RESUME:
      if (state_.state == RunState::kRunning) {
        return answer(order.request(), "is running", state_.step);
      }
      control_.order(RunOrder::kResume);
      break;
    case proto::RunOrder::SNAPSHOT: control_.order(RunOrder::kSnapshot); break;
    case proto::RunOrder::STOP:
    case proto::RunOrder::STOP_NOW:
      waiting.for_end = true;
      releases_devices_ = false;
      stop_signals_ =
          order.kind() == proto::RunOrder::STOP_NOW ? 2 : std::max(1, stop_signals_.load());
      break;
  }
  waiting_.push_back(waiting);
}

void OrderBook::on_state(const StateReport& report) {
  const std::lock_guard lock(mutex_);
  state_ = report;
  const auto wants = [](proto::RunOrder::Kind kind) {
    return [kind](const Waiting& w) { return !w.for_end && w.kind == kind; };
  };
  if (report.state == RunState::kPaused) {
    answer_those(wants(proto::RunOrder::PAUSE), "is paused; its workers stay", report.step);
  }
  if (report.state == RunState::kRunning) {
    answer_those(wants(proto::RunOrder::RESUME), "is running", report.step);
  }
}

void OrderBook::on_checkpoint(const CheckpointReport& report) {
  const std::lock_guard lock(mutex_);
  answer_those([](const Waiting& w) { return w.kind == proto::RunOrder::SNAPSHOT; },
               "has written " + report.directory, report.step, report.error);
}

void OrderBook::on_checkpoint_kept(int64_t step, const std::string& directory) {
  const std::lock_guard lock(mutex_);
  answer_those([](const Waiting& w) { return w.kind == proto::RunOrder::SNAPSHOT; },
               "is kept in " + directory + " already", step);
}

void OrderBook::on_end(const std::string& text, int64_t step) {
  const std::lock_guard lock(mutex_);
  answer_those([](const Waiting& w) { return w.for_end; }, text, step);
  answer_those([](const Waiting&) { return true; }, "", step, "the run has ended meanwhile");
}

}  // namespace percheron
