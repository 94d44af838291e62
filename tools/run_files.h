#pragma once

#include <string>
#include <vector>

#include "actors/observer.h"
#include "base/file_system.h"
#include "base/status.h"
#include "proto/run.pb.h"
#include "tools/observer_list.h"

namespace percheron {

/// Passes on what is said before there are files to write it to, and keeps it for them.
class StartEvents final : public RunObserver {
 public:
  explicit StartEvents(RunObserver& next) : next_(next) {}
  void on_event(const std::string& text) override {
    if (texts_.size() < kTextsMax) texts_.push_back(text);
    next_.on_event(text);
  }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  static constexpr size_t kTextsMax = 1000;
  RunObserver& next_;
  std::vector<std::string> texts_;
};

/// Opens the files that a run writes beside its checkpoints. `said` goes into them first.
Status add_run_files(FileSystem& files, const proto::Run& run, const std::vector<std::string>& said,
                     ObserverList& observers);

}  // namespace percheron
