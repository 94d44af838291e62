#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "data/transport/hello.h"
#include "data/transport/random_bytes.h"
#include "data/transport/ucx_carrier.h"

namespace percheron {

/// By what the bytes of a node's bulk connections go: by UCX where both ends have it, else over the
/// connection itself. Says so once of each node, and again when it changes. Where UCX failed,
/// connections with that node stay as they are for kFailedMinutes, without another try.
/// Thread-safe.
class BulkWay {
 public:
  static constexpr int kFailedMinutes = 5;
  using Connect = std::function<Result<Connection>()>;

  /// `ucx`: null where this node takes none. The next two are borrowed. `take_over_time`: that UCX
  /// gets on a connection, both ends together.
  BulkWay(std::shared_ptr<UcxCarrier> ucx, RandomBytes& random, const Clock& clock,
          std::chrono::milliseconds take_over_time = std::chrono::milliseconds(5000))
      : ucx_(std::move(ucx)), random_(random), clock_(clock), take_over_time_(take_over_time) {}

  /// Of a connection at its first byte; either end calls it. Errors as UcxCarrier::take_over().
  Result<std::unique_ptr<ByteStream>> stream_of(Connection connection, Deadline deadline);
  /// Of a new connection with `node`; once more where UCX took so long that the first was lost by
  /// it. Errors as `connect` and stream_of().
  Result<std::unique_ptr<ByteStream>> open(const std::string& node, const Connect& connect,
                                           Deadline deadline);

 private:
  struct Node {
    std::string said;
    int64_t try_again_ns = 0;  // of the clock; 0: UCX has not failed
  };

  bool has_failed(const std::string& node);
  void say(const std::string& node, const std::string& way);
  void fail(const std::string& node, const std::string& why);
  Node& known_locked(const std::string& node);

  const std::shared_ptr<UcxCarrier> ucx_;
  RandomBytes& random_;
  const Clock& clock_;
  const std::chrono::milliseconds take_over_time_;
  std::mutex mutex_;
  std::map<std::string, Node> nodes_;
};

}  // namespace percheron
