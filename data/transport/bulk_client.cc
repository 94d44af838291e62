#include "data/transport/bulk_client.h"

#include <algorithm>

#include "base/check.h"
#include "data/transport/bulk_pull.h"
#include "data/transport/bulk_streams.h"
#include "data/transport/bulk_wire.h"

namespace percheron {
namespace {

Result<SharedRegion> as_destination(SharedRegion given, uint64_t bytes) {
  if (given.access() == SharedRegion::Access::kReadWrite && given.size() >= bytes) return given;
  return invalid_argument(
      "a region of " + std::to_string(given.size()) + " bytes cannot take a pull of " +
      std::to_string(bytes) + " bytes" +
      (given.access() == SharedRegion::Access::kRead ? ": it is read-only" : ""));
}

}  // namespace

void PullCancellation::cancel() {
  cancelled_ = true;
  const std::lock_guard lock(mutex_);
  if (on_cancel_ != nullptr) on_cancel_();
}

void PullCancellation::set(std::function<void()> on_cancel) {
  const std::lock_guard lock(mutex_);
  on_cancel_ = std::move(on_cancel);
  if (on_cancel_ != nullptr && cancelled_) on_cancel_();
}

BulkClient::BulkClient(std::string peer, Connect connect, ByteCredits& credits,
                       const BulkClientOptions& options)
    : credits_(credits),
      options_(options),
      streams_(
          std::make_unique<BulkStreams>(std::move(peer), std::move(connect), options.streams_max)) {
  PERCHERON_CHECK(options.streams_per_pull > 0 && options.streams_max > 0 &&
                      options.chunk_bytes > 0 && options.chunk_bytes <= kBulkChunkBytesMax,
                  "a bulk client without streams or chunks");
}

BulkClient::~BulkClient() { close(); }

Result<PulledRegion> BulkClient::pull(const BulkRequest& request, Deadline deadline,
                                      PullCancellation* cancellation) {
  const auto fresh = [&] {
    return SharedRegion::create("percheron pull", request.bytes, SharedRegion::Backing::kOnDemand);
  };
  return pull_to(fresh, nullptr, request, deadline, cancellation);
}

Result<PulledRegion> BulkClient::pull_into(SharedRegion region, const BulkRequest& request,
                                           Deadline deadline, PullCancellation* cancellation) {
  const auto given = [&] { return as_destination(std::move(region), request.bytes); };
  return pull_to(given, nullptr, request, deadline, cancellation);
}

Result<PulledRegion> BulkClient::pull_into(RegionPool& pool, const BulkRequest& request,
                                           Deadline deadline, PullCancellation* cancellation) {
  const auto pooled = [&] { return pool.take(request.bytes); };
  return pull_to(pooled, &pool, request, deadline, cancellation);
}

Result<PulledRegion> BulkClient::pull_to(const Destination& destination, RegionPool* pool,
                                         const BulkRequest& request, Deadline deadline,
                                         PullCancellation* cancellation) {
  Result<PulledRegion> pulled = try_pull(destination, pool, request, deadline, cancellation);
  const std::lock_guard lock(mutex_);
  if (pulled.ok()) {
    ++counts_.pulls;
    counts_.bytes += request.bytes;
  } else {
    ++counts_.failed;
  }
  return pulled;
}

namespace {

// Whatever happens, cancel() afterwards finds nothing to do.
class CancelScope {
 public:
  explicit CancelScope(std::function<void()> end) : end_(std::move(end)) {}
  ~CancelScope() { end_(); }
  CancelScope(const CancelScope&) = delete;
  CancelScope& operator=(const CancelScope&) = delete;

 private:
  const std::function<void()> end_;
};

}  // namespace

Result<PulledRegion> BulkClient::try_pull(const Destination& destination, RegionPool* pool,
                                          const BulkRequest& request, Deadline deadline,
                                          PullCancellation* cancellation) {
  if (request.bytes == 0) return invalid_argument("a pull of no bytes");
  PullCancellation never;
  PullCancellation& cancel = cancellation != nullptr ? *cancellation : never;
  const CancelScope scope([&] { cancel.set(nullptr); });
  cancel.set([this] { credits_.wake(); });
  const auto given_up = [&] { return cancel.cancelled() || streams_->closed(); };
  PERCHERON_ASSIGN_OR_RETURN(ByteCredits::Hold hold,
                             credits_.take(request.bytes, deadline, given_up));
  PERCHERON_ASSIGN_OR_RETURN(SharedRegion region, destination());
  BulkPull pull(request, region, *streams_, options_, deadline);
  {
    const std::lock_guard lock(mutex_);
    running_.insert(&pull);
  }
  cancel.set([&] { pull.stop(cancelled("the pull was cancelled")); });
  const Status status = pull.run();
  cancel.set(nullptr);
  {
    const std::lock_guard lock(mutex_);
    running_.erase(&pull);
    counts_.chunks_retried += pull.chunks_retried();
  }
  if (!status.ok()) {
    if (pool != nullptr) pool->give_back(std::move(region));
    return status;
  }
  region.note_written(request.bytes);
  return PulledRegion{std::move(region), std::move(hold)};
}

void BulkClient::close() {
  streams_->close();
  {
    const std::lock_guard lock(mutex_);
    for (BulkPull* pull : running_) pull->stop(cancelled("pulling was ended"));
  }
  credits_.wake();
}

BulkClientCounts BulkClient::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace percheron
