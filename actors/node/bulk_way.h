#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/status.h"
#include "data/transport/hello.h"
#include "data/transport/random_bytes.h"
#include "data/transport/ucx_carrier.h"

namespace percheron {

/// By what the bytes of a node's bulk connections go: by UCX where both ends have it, else over the
/// connection itself. Says so once of each node, and again when it changes. Thread-safe.
class BulkWay {
 public:
  /// `ucx`: null where this node takes none. `random` is borrowed.
  BulkWay(std::shared_ptr<UcxCarrier> ucx, RandomBytes& random)
      : ucx_(std::move(ucx)), random_(random) {}

  /// Of a connection at its first byte; either end calls it. Errors as UcxCarrier::take_over().
  Result<std::unique_ptr<ByteStream>> stream_of(Connection connection, Deadline deadline);

 private:
  void say(const std::string& node, const std::string& way);

  const std::shared_ptr<UcxCarrier> ucx_;
  RandomBytes& random_;
  std::mutex mutex_;
  std::map<std::string, std::string> said_;  // by node
};

}  // namespace percheron
