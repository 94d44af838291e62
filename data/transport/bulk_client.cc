#include "data/transport/bulk_client.h"

#include <algorithm>

#include "base/check.h"
#include "data/transport/bulk_pull.h"
#include "data/transport/bulk_streams.h"
#include "data/transport/bulk_wire.h"

namespace percheron {

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
  PullCancellation never;
  PullCancellation& stop = cancellation != nullptr ? *cancellation : never;
  Result<PulledRegion> pulled = try_pull(request, deadline, stop);
  stop.set(nullptr);
  const std::lock_guard lock(mutex_);
  if (pulled.ok()) {
    ++counts_.pulls;
    counts_.bytes += request.bytes;
  } else {
    ++counts_.failed;
  }
  return pulled;
}

Result<PulledRegion> BulkClient::try_pull(const BulkRequest& request, Deadline deadline,
                                          PullCancellation& cancellation) {
  if (request.bytes == 0) return invalid_argument("a pull of no bytes");
  const auto given_up = [&] { return cancellation.cancelled() || streams_->closed(); };
  cancellation.set([this] { credits_.wake(); });
  PERCHERON_ASSIGN_OR_RETURN(ByteCredits::Hold hold,
                             credits_.take(request.bytes, deadline, given_up));
  PERCHERON_ASSIGN_OR_RETURN(
      SharedRegion region,
      SharedRegion::create("percheron pull", request.bytes, SharedRegion::Backing::kOnDemand));
  BulkPull pull(request, region, *streams_, options_, deadline);
  {
    const std::lock_guard lock(mutex_);
    running_.insert(&pull);
  }
  cancellation.set([&] { pull.stop(percheron::cancelled("the pull was cancelled")); });
  Status status = pull.run();
  cancellation.set(nullptr);
  {
    const std::lock_guard lock(mutex_);
    running_.erase(&pull);
    counts_.chunks_retried += pull.chunks_retried();
  }
  if (!status.ok()) return status;
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
