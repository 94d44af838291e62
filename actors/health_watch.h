#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "actors/card_reader.h"
#include "actors/policy/run_activity.h"

namespace percheron {

/// Tells a run's activity every 2 s what the driver says of its GPUs, as long as it lives.
class HealthWatch {
 public:
  /// `devices`: of the run, "cuda:0".
  HealthWatch(std::shared_ptr<RunActivity> activity, std::unique_ptr<CardReader> reader,
              std::vector<std::string> devices);
  ~HealthWatch();

 private:
  void watch();

  const std::shared_ptr<RunActivity> activity_;
  const std::unique_ptr<CardReader> reader_;
  const std::vector<std::string> devices_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool ending_ = false;
  std::thread watcher_;  // last: it uses the others
};

}  // namespace percheron
