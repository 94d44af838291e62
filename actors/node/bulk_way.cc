#include "actors/node/bulk_way.h"

#include <utility>

#include "base/log.h"

namespace percheron {
namespace {

constexpr size_t kNodesMax = 4096;  // that something is remembered of
constexpr int64_t kFailedNs = int64_t{BulkWay::kFailedMinutes} * 60 * 1'000'000'000;

}  // namespace

Result<std::unique_ptr<ByteStream>> BulkWay::stream_of(Connection connection, Deadline deadline) {
  if (ucx_ == nullptr) return std::move(connection.stream);
  const std::string node = connection.peer.name;
  if (!connection.peer.ucx) {
    say(node, "over TCP: it takes no UCX");
    return std::move(connection.stream);
  }
  const Deadline in_time = Deadline::after(take_over_time_);
  const Deadline taken_over = in_time.earlier(deadline);
  if (has_failed(node)) {
    PERCHERON_RETURN_IF_ERROR(ucx_->decline(*connection.stream, taken_over));
    return std::move(connection.stream);
  }
  Result<UcxCarrier::Carried> carried =
      ucx_->take_over(std::move(connection.stream), random_, taken_over);
  if (!carried.ok()) {
    // Else the connection broke, which says nothing of UCX.
    if (in_time.passed()) fail(node, "no answer in time: " + carried.status().message());
    return carried.status();
  }
  if (carried->ucx.ok()) {
    say(node, "by UCX");
  } else if (carried->declined) {
    // That cost nothing. Were it remembered, each end would decline because the other just did.
    say(node, "over TCP: " + carried->ucx.message());
  } else {
    fail(node, carried->ucx.message());
  }
  return std::move(carried->stream);
}

Result<std::unique_ptr<ByteStream>> BulkWay::open(const std::string& node, const Connect& connect,
                                                  Deadline deadline) {
  for (bool may_fail = !has_failed(node);; may_fail = false) {
    PERCHERON_ASSIGN_OR_RETURN(Connection connection, connect());
    Result<std::unique_ptr<ByteStream>> stream = stream_of(std::move(connection), deadline);
    if (stream.ok() || !may_fail || !has_failed(node) || deadline.passed()) return stream;
  }
}

bool BulkWay::has_failed(const std::string& node) {
  const std::lock_guard lock(mutex_);
  const auto known = nodes_.find(node);
  return known != nodes_.end() && clock_.monotonic_ns() < known->second.try_again_ns;
}

BulkWay::Node& BulkWay::known_locked(const std::string& node) {
  if (nodes_.size() >= kNodesMax && !nodes_.contains(node)) nodes_.clear();
  return nodes_[node];
}

void BulkWay::say(const std::string& node, const std::string& way) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(known_locked(node).said, way) == way) return;
  }
  log_info("features to and from {} go {}", node, way);
}

void BulkWay::fail(const std::string& node, const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    known_locked(node).try_again_ns = clock_.monotonic_ns() + kFailedNs;
  }
  say(node, "over TCP: " + why);
}

}  // namespace percheron
