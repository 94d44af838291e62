#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "data/transport/byte_stream.h"

namespace percheron {

/// The connections to one peer that its pulls share: made as needed, kept while they work, at most
/// `streams_max`. Thread-safe.
class BulkStreams {
 public:
  using Connect = std::function<Result<std::unique_ptr<ByteStream>>(Deadline)>;
  using Stop = std::function<bool()>;

  BulkStreams(std::string peer, Connect connect, int streams_max)
      : peer_(std::move(peer)), connect_(std::move(connect)), streams_max_(streams_max) {}
  BulkStreams(const BulkStreams&) = delete;
  BulkStreams& operator=(const BulkStreams&) = delete;

  /// Where a stream may come from.
  enum class Source {
    kAny,  // one that is kept, else a new one
    kNew,  // a new one: those that are kept are as old as one that just broke, and are closed
  };
  /// Waits until `deadline`, or until `stop` (asked again at wake()) says so, for one of the
  /// streams. kUnavailable at the deadline, kCancelled when stopped or closed, and what `connect`
  /// says.
  Result<std::unique_ptr<ByteStream>> take(Source source, Deadline deadline, const Stop& stop);
  /// As take() of kAny, but without waiting for others: null when all are in use.
  Result<std::unique_ptr<ByteStream>> try_take(Deadline deadline);
  /// Keeps a stream that works, at the end of an answer.
  void keep(std::unique_ptr<ByteStream> stream);
  /// Drops one that doesn't.
  void drop(std::unique_ptr<ByteStream> stream);

  /// Lets those who wait ask `stop` again.
  void wake();
  /// Refuses all later calls and closes the streams that nobody uses.
  void close();
  bool closed() const;

 private:
  Result<std::unique_ptr<ByteStream>> connect(Deadline deadline);
  Status closed_status() const;

  const std::string peer_;
  const Connect connect_;
  const int streams_max_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<ByteStream>> idle_;
  int open_ = 0;  // idle, in use or being made
  bool closed_ = false;
};

}  // namespace percheron
