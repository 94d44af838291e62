#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "base/status.h"
#include "data/transport/byte_credits.h"
#include "data/transport/byte_stream.h"
#include "data/transport/region_pool.h"
#include "data/transport/shared_region.h"

namespace percheron {

/// What to pull, as a ticket says.
struct BulkRequest {
  uint64_t slot = 0;
  uint64_t generation = 0;
  uint64_t bytes = 0;   // > 0
  uint32_t crc32c = 0;  // of all bytes
};

/// What arrived, with the credits that its bytes hold until it goes.
struct PulledRegion {
  SharedRegion region;  // its first BulkRequest::bytes bytes
  ByteCredits::Hold hold;
};

struct BulkClientOptions {
  int streams_per_pull = 4;  // connections that one pull uses at most
  int streams_max = 8;       // of all pulls from this peer together
  uint64_t chunk_bytes = uint64_t{4} << 20;
  std::chrono::milliseconds chunk_timeout{10'000};  // without any progress on a connection
};

class BulkPull;
class BulkStreams;

/// Ends a pull from another thread. May be used for one pull only.
class PullCancellation {
 public:
  /// Any thread; before, during or after the pull.
  void cancel();
  bool cancelled() const { return cancelled_; }

 private:
  friend class BulkClient;
  /// What cancel() does; at once where it was called already.
  void set(std::function<void()> on_cancel);

  std::atomic<bool> cancelled_{false};
  std::mutex mutex_;
  std::function<void()> on_cancel_;
};

/// What a client has done so far.
struct BulkClientCounts {
  int64_t pulls = 0;   // that arrived whole
  int64_t failed = 0;  // gone, cancelled, late or broken
  uint64_t bytes = 0;  // of pulls that arrived whole
  int64_t chunks_retried = 0;
};

/// Pulls regions from one peer's BulkServer over several connections, which it opens as needed and
/// keeps. Apart from the destination it needs no memory that grows with the region. Thread-safe:
/// pulls of several threads share the connections.
class BulkClient {
 public:
  /// Makes an authenticated bulk connection to the peer, as connect_node() does.
  using Connect = std::function<Result<std::unique_ptr<ByteStream>>(Deadline)>;

  /// `credits` is borrowed; clients of several peers share it.
  BulkClient(std::string peer, Connect connect, ByteCredits& credits,
             const BulkClientOptions& options = {});
  /// As close(); no pull may be under way.
  ~BulkClient();

  /// Waits for credits, then for the bytes, until `deadline`, and checks them against their CRC. A
  /// chunk that fails (broken or silent connection, wrong CRC) is asked for once more on another
  /// connection. Errors: kNotFound when the peer no longer has this generation, kUnavailable when
  /// it can't be reached, breaks off or is late, kDataLoss for wrong bytes, kCancelled after
  /// cancel() or close(), kInvalidArgument for more bytes than all credits, kResourceExhausted
  /// without memory.
  Result<PulledRegion> pull(const BulkRequest& request, Deadline deadline,
                            PullCancellation* cancellation = nullptr);

  /// As pull(), into `region`, which has at least request.bytes bytes and is writable: one that was
  /// used before saves the clearing of new memory, which takes as long as the transfer. It must not
  /// be in use anywhere; after an error it is gone.
  Result<PulledRegion> pull_into(SharedRegion region, const BulkRequest& request, Deadline deadline,
                                 PullCancellation* cancellation = nullptr);

  /// As pull(), into a region of `pool`, which is taken once there are credits for it: pulls that
  /// wait hold no memory. It is the caller's to give back; after an error the pool has it.
  Result<PulledRegion> pull_into(RegionPool& pool, const BulkRequest& request, Deadline deadline,
                                 PullCancellation* cancellation = nullptr);

  /// Ends all pulls, now and later, and the connections. One that is being made is waited for by
  /// its pull.
  void close();

  BulkClientCounts counts() const;

 private:
  /// Where the bytes go; asked for when there are credits.
  using Destination = std::function<Result<SharedRegion>()>;
  /// A failed pull's region goes to `pool`, where there is one.
  Result<PulledRegion> pull_to(const Destination& destination, RegionPool* pool,
                               const BulkRequest& request, Deadline deadline,
                               PullCancellation* cancellation);
  Result<PulledRegion> try_pull(const Destination& destination, RegionPool* pool,
                                const BulkRequest& request, Deadline deadline,
                                PullCancellation* cancellation);

  ByteCredits& credits_;
  const BulkClientOptions options_;
  const std::unique_ptr<BulkStreams> streams_;
  mutable std::mutex mutex_;
  std::set<BulkPull*> running_;
  BulkClientCounts counts_;
};

}  // namespace percheron
