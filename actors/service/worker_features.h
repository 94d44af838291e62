#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "actors/feature_exchange.h"
#include "actors/service/frame_link.h"
#include "actors/work_thread.h"
#include "base/file_system.h"

namespace percheron {

/// The features of a worker process: its daemon keeps what it makes, and brings what it needs, as
/// regions of shared memory. Thread-safe.
class WorkerFeatures final : public FeatureExchange {
 public:
  /// `nodes`: the nodes of the run in the order in which tickets number them, as know() tells
  /// later; `self` is this process. All references are borrowed.
  WorkerFeatures(FrameLink& daemon, FileSystem& files, const Clock& clock, proto::Endpoint self,
                 std::vector<std::string> nodes);

  Status publish(FeaturesPtr features, Produced& produced) override;
  void fetch(const Ticket& ticket, Done done) override;
  bool held_out_is_elsewhere() const override { return true; }

  void know(std::vector<std::string> nodes);
  /// What the daemon brought, or why it could not.
  void fetched(const proto::FeaturesFetched& answer, FileDescriptor fd);
  /// Ends every fetch that still waits.
  void close();

 private:
  proto::Frame frame_to_daemon() const;
  Result<FeaturesPtr> read(const FileDescriptor& fd);

  FrameLink& daemon_;
  FileSystem& files_;
  const proto::Endpoint self_;
  std::mutex mutex_;
  std::vector<std::string> nodes_;
  uint64_t next_request_ = 1;
  bool closed_ = false;
  std::map<uint64_t, Done> waiting_;
  WorkThread reader_;  // last: it uses the others
};

}  // namespace percheron
