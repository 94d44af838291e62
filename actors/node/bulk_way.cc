#include "actors/node/bulk_way.h"

#include <chrono>
#include <utility>

#include "base/log.h"

namespace percheron {
namespace {

constexpr auto kTakeOverTime = std::chrono::milliseconds(5000);
constexpr size_t kNodesMax = 4096;  // that something is remembered of

}  // namespace

Result<std::unique_ptr<ByteStream>> BulkWay::stream_of(Connection connection, Deadline deadline) {
  if (ucx_ == nullptr) return std::move(connection.stream);
  const std::string node = connection.peer.name;
  if (!connection.peer.ucx) {
    say(node, "over TCP: it takes no UCX");
    return std::move(connection.stream);
  }
  PERCHERON_ASSIGN_OR_RETURN(UcxCarrier::Carried carried,
                             ucx_->take_over(std::move(connection.stream), random_,
                                             Deadline::after(kTakeOverTime).earlier(deadline)));
  say(node, carried.ucx.ok() ? "by UCX" : "over TCP: " + carried.ucx.message());
  return std::move(carried.stream);
}

void BulkWay::say(const std::string& node, const std::string& way) {
  {
    const std::lock_guard lock(mutex_);
    if (said_.size() >= kNodesMax) said_.clear();
    if (std::exchange(said_[node], way) == way) return;
  }
  log_info("features to and from {} go {}", node, way);
}

}  // namespace percheron
