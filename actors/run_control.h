#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "actors/policy/worker_roll.h"

namespace percheron {

/// What an operator asks of a run. Each may be repeated without harm.
enum class RunOrder {
  kPause,     // hold at the next step boundary
  kResume,    // go on
  kSnapshot,  // a checkpoint at the next step boundary, which a paused run is at
  kStop,      // a checkpoint at the next step boundary, then the end
};

/// How others steer a run while it goes on, from any thread: the operator, and whoever watches the
/// workers. Answers come through RunObserver::on_state, on_workers, on_checkpoint and on_event.
class RunControl {
 public:
  struct Worker {
    WorkerKind kind = WorkerKind::kTarget;
    int number = 0;
  };
  struct Lost : Worker {};
  struct Ready : Worker {};
  struct Added : Worker {
    int node = 0;        // as tickets number them
    std::string device;  // for people
  };
  struct Retired : Worker {};
  struct LostNode {
    int node = 0;
  };
  using Message = std::variant<RunOrder, Lost, Ready, Added, Retired, LostNode>;

  void order(RunOrder order) { tell(order); }
  /// A worker is dead, or does not answer: it gets no work until it is ready again.
  void worker_lost(WorkerKind kind, int number) { tell(Lost{{kind, number}}); }
  /// It was started again and knows nothing.
  void worker_ready(WorkerKind kind, int number) { tell(Ready{{kind, number}}); }
  /// The run has one more worker, with the next number; it is away until it is ready.
  void worker_added(WorkerKind kind, int number, int node, const std::string& device) {
    tell(Added{{kind, number}, node, device});
  }
  /// A worker is to leave for good. Once RunObserver::on_workers does not name it any more, nothing
  /// is wanted of it.
  void worker_retired(WorkerKind kind, int number) { tell(Retired{{kind, number}}); }
  /// The features of a node are gone; its workers are told one by one, before.
  void node_lost(int node) { tell(LostNode{node}); }

  /// The run takes messages from now on, those that were told before first.
  void attach(std::function<void(const Message&)> run);
  /// The run has ended: messages have no effect any more.
  void detach();

 private:
  void tell(const Message& message);

  // Told before there is a run to hear it; more than an operator could want.
  static constexpr size_t kWaitingMax = 1000;

  std::mutex mutex_;
  std::function<void(const Message&)> run_;
  bool over_ = false;
  std::vector<Message> waiting_;
};

}  // namespace percheron
