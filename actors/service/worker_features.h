#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "actors/feature_exchange.h"
#include "actors/service/frame_link.h"
#include "actors/work_thread.h"
#include "data/transport/region_pool.h"

namespace percheron {

/// The features of a worker process: its daemon keeps what it makes, and brings what it needs, as
/// regions of shared memory, and says which of the worker's own nobody reads any more: they are
/// used again. Thread-safe.
class WorkerFeatures final : public FeatureExchange {
 public:
  /// `nodes`: the nodes of the run in the order in which tickets number them, as know() tells
  /// later; `self` is this process. All references are borrowed.
  WorkerFeatures(FrameLink& daemon, const Clock& clock, proto::Endpoint self,
                 std::vector<std::string> nodes);

  Status publish(FeaturesPtr features, Produced& produced) override;
  void fetch(const Ticket& ticket, Done done) override;
  bool held_out_is_elsewhere() const override { return true; }

  void know(std::vector<std::string> nodes);
  /// The daemon has no more use for these regions of this worker.
  void freed(const proto::RegionsFreed& freed);
  /// What the daemon brought, or why it could not.
  void fetched(const proto::FeaturesFetched& answer, FileDescriptor fd);
  /// Ends every fetch that still waits.
  void close();

 private:
  struct Waiting {
    uint64_t bytes = 0;
    uint32_t crc32c = 0;
    Done done;
  };

  proto::Frame frame_to_daemon() const;
  void read(uint64_t request, FileDescriptor fd, const Waiting& waiting);

  // As much as a micro-batch of 64K tokens of a large target has. It is memory that was in use
  // before: the pool never adds to what the features in flight have once had.
  static constexpr uint64_t kIdleBytesMax = uint64_t{8} << 30;

  FrameLink& daemon_;
  const proto::Endpoint self_;
  RegionPool pool_{"features", kIdleBytesMax};
  std::mutex mutex_;
  std::vector<std::string> nodes_;
  uint64_t next_request_ = 1;
  bool closed_ = false;
  std::map<uint64_t, Waiting> waiting_;
  uint64_t next_region_ = 1;
  std::map<uint64_t, SharedRegion> published_;  // that the daemon may need
  WorkThread reader_;                           // last: it uses the others
};

}  // namespace percheron
