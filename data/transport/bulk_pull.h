#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "data/transport/bulk_client.h"
#include "data/transport/bulk_streams.h"
#include "data/transport/bulk_wire.h"
#include "data/transport/shared_region.h"

namespace percheron {

/// One pull: chunks that wait to be asked for, and the streams that fetch them.
class BulkPull {
 public:
  /// `into` has request.bytes bytes or more, whose pages need not be there; all references are
  /// borrowed.
  BulkPull(const BulkRequest& request, SharedRegion& into, BulkStreams& streams,
           const BulkClientOptions& options, Deadline deadline);

  /// Fetches everything and checks it; blocks. Uses the calling thread and a few more, which have
  /// ended when it returns.
  Status run();
  /// Any thread: lets run() end with `why`, unless it has a reason already.
  void stop(const Status& why);
  int64_t chunks_retried() const { return chunks_retried_; }

 private:
  struct Chunk {
    size_t index = 0;
    int failures = 0;
  };
  // Requests on one stream whose answers have not come.
  using Asked = std::deque<Chunk>;
  // A stream that was kept from an earlier pull may have ended meanwhile.
  enum class Trust { kUntried, kWorks };

  std::span<std::byte> bytes_of(const Chunk& chunk) const;
  bool stopped() const;
  /// A chunk that has failed is only for a stream that works.
  bool next_chunk(Trust trust, Chunk& chunk);
  /// Puts chunks back whose stream broke; false when one may not be asked for again.
  bool give_back(Asked& asked);
  void work(std::unique_ptr<ByteStream> stream);
  /// Fetches until none is left; what was asked for in vain stays in `asked`.
  Status fetch(ByteStream& stream, Trust trust, Asked& asked);
  Status ask(ByteStream& stream, const Chunk& chunk);
  Status receive(ByteStream& stream, const Chunk& chunk);
  Status receive_bytes(ByteStream& stream, std::span<std::byte> into, uint32_t& crc);
  Deadline io_deadline() const;
  Status verify_whole() const;

  const BulkRequest request_;
  SharedRegion& region_;
  const std::span<std::byte> into_;
  BulkStreams& streams_;
  const BulkClientOptions options_;
  const Deadline deadline_;
  const size_t chunk_count_;
  const int streams_max_;
  const size_t asked_max_;      // requests on a stream at once
  std::vector<uint32_t> crcs_;  // of each chunk, by who has fetched it
  mutable std::mutex mutex_;    // guards what follows
  std::deque<Chunk> waiting_;   // to be asked for once more
  size_t next_index_ = 0;       // the first that was never asked for
  std::set<ByteStream*> active_;
  Status error_;
  int64_t chunks_retried_ = 0;
};

}  // namespace percheron
