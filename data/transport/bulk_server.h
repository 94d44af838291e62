#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "base/status.h"
#include "data/transport/byte_stream.h"
#include "data/transport/shared_region.h"

namespace percheron {

/// The regions that a node lets others pull, by slot; each use of a slot is a new generation.
/// Thread-safe.
class BulkRegions {
 public:
  using Region = std::shared_ptr<const SharedRegion>;

  /// Offers the first `bytes` bytes of `region` as (slot, generation), in place of an older
  /// generation. kFailedPrecondition when the slot has this generation already or a later one.
  Status add(uint64_t slot, uint64_t generation, Region region, uint64_t bytes);
  /// From now on (slot, generation) is gone. Transfers under way keep their `Region` until they
  /// end: who uses the memory again waits for the last copy of the pointer, as by its deleter.
  void remove(uint64_t slot, uint64_t generation);

  /// As remove(), and nothing of the slot stays known: its next generation may be any.
  void forget(uint64_t slot);

  struct Offer {
    Region region;
    uint64_t bytes = 0;
  };
  /// A null region when it is gone or never was.
  Offer find(uint64_t slot, uint64_t generation) const;

 private:
  struct Entry {
    uint64_t generation = 0;
    Offer offer;  // without a region after remove(): the generation stays known
  };

  mutable std::mutex mutex_;
  std::map<uint64_t, Entry> entries_;
};

struct BulkServerOptions {
  std::chrono::milliseconds send_timeout{10'000};   // for one chunk
  std::chrono::milliseconds idle_timeout{300'000};  // without a request
};

/// Serves byte ranges of `regions` to one authenticated peer until it leaves, breaks the protocol
/// or the stream is closed. Blocks; run it on the connection's thread. Each chunk goes out with its
/// CRC-32C. Ok when the peer left between two requests.
Status serve_bulk(ByteStream& stream, const BulkRegions& regions,
                  const BulkServerOptions& options = {});

}  // namespace percheron
