#include "actors/service/worker_features.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "actors/messages.h"
#include "base/log.h"
#include "data/feature_region.h"

namespace percheron {
namespace {

void set_key(MicroBatchId id, int64_t generation, uint64_t bytes, uint32_t crc,
             const std::string& node, proto::FeatureKey* key) {
  key->set_node(node);
  key->set_epoch(id.epoch);
  key->set_index(id.index);
  key->set_generation(generation);
  key->set_bytes(bytes);
  key->set_crc32c(crc);
}

}  // namespace

WorkerFeatures::WorkerFeatures(FrameLink& daemon, const Clock& clock, proto::Endpoint self,
                               std::vector<std::string> nodes)
    : daemon_(daemon),
      self_(std::move(self)),
      nodes_(std::move(nodes)),
      reader_("features", clock) {}

proto::Frame WorkerFeatures::frame_to_daemon() const {
  proto::Frame frame;
  *frame.mutable_from() = self_;
  frame.mutable_to()->set_node(self_.node());
  frame.mutable_to()->set_kind(proto::Endpoint::DAEMON);
  return frame;
}

Status WorkerFeatures::publish(FeaturesPtr features, Produced& produced) {
  PERCHERON_ASSIGN_OR_RETURN(FeatureRegion region, write_feature_region(pool_, *features));
  PERCHERON_ASSIGN_OR_RETURN(FileDescriptor fd, region.region.fd().duplicate());
  produced.region_bytes = region.bytes;
  produced.crc32c = region.crc32c;
  proto::Frame frame = frame_to_daemon();
  set_key(features->batch.id, produced.work.generation, region.bytes, region.crc32c, self_.node(),
          frame.mutable_publish()->mutable_key());
  frame.mutable_publish()->set_used_before(region.used_before);
  {
    const std::lock_guard lock(mutex_);
    frame.mutable_publish()->set_region(next_region_);
    published_.emplace(next_region_++, std::move(region.region));
  }
  // Before the word that they are there, which takes the same way.
  daemon_.send(std::move(frame), std::move(fd));
  return ok_status();
}

void WorkerFeatures::freed(const proto::RegionsFreed& freed) {
  for (const uint64_t number : freed.regions()) {
    std::optional<SharedRegion> region;
    {
      const std::lock_guard lock(mutex_);
      const auto published = published_.find(number);
      if (published == published_.end()) continue;
      region = std::move(published->second);
      published_.erase(published);
    }
    pool_.give_back(std::move(*region));
  }
}

void WorkerFeatures::fetch(const Ticket& ticket, Done done) {
  const auto node = static_cast<size_t>(ticket.node);
  proto::Frame frame = frame_to_daemon();
  proto::FetchFeatures& fetch = *frame.mutable_fetch();
  Status refused;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) {
      refused = cancelled("this process ends");
    } else if (node >= nodes_.size()) {
      refused = invalid_argument(fmt::format("a ticket names node {} of {}", node, nodes_.size()));
    } else {
      set_key(ticket.id, ticket.generation, ticket.region_bytes, ticket.crc32c, nodes_[node],
              fetch.mutable_key());
      fetch.set_request(next_request_);
      waiting_.emplace(next_request_++,
                       Waiting{ticket.region_bytes, ticket.crc32c, std::move(done)});
    }
  }
  if (!refused.ok()) return done(refused);
  daemon_.send(std::move(frame));
}

void WorkerFeatures::know(std::vector<std::string> nodes) {
  const std::lock_guard lock(mutex_);
  nodes_ = std::move(nodes);
}

void WorkerFeatures::fetched(const proto::FeaturesFetched& answer, FileDescriptor fd) {
  Waiting waiting;
  {
    const std::lock_guard lock(mutex_);
    const auto found = waiting_.find(answer.request());
    if (found == waiting_.end()) return;  // It was closed meanwhile.
    waiting = std::move(found->second);
    waiting_.erase(found);
  }
  if (answer.has_error()) return waiting.done(unavailable(answer.error()));
  if (!fd.valid())
    return waiting.done(internal_error("the daemon brought features without memory"));
  const auto held = std::make_shared<FileDescriptor>(std::move(fd));
  reader_.post([this, held, request = answer.request(), waiting = std::move(waiting)] {
    read(request, std::move(*held), waiting);
  });
}

void WorkerFeatures::read(uint64_t request, FileDescriptor fd, const Waiting& waiting) {
  Result<Features> features = read_feature_region(std::move(fd), waiting.bytes, waiting.crc32c);
  // They are a copy: the memory is needed here no more, whatever becomes of it.
  proto::Frame frame = frame_to_daemon();
  frame.mutable_given_back()->set_request(request);
  daemon_.send(std::move(frame));
  if (!features.ok()) return waiting.done(features.status());
  waiting.done(std::make_shared<const Features>(std::move(features).value()));
}

void WorkerFeatures::close() {
  std::map<uint64_t, Waiting> waiting;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    waiting.swap(waiting_);
  }
  for (auto& [request, it] : waiting) it.done(cancelled("this process ends"));
  reader_.stop();
  const RegionPoolCounts counts = pool_.counts();
  if (counts.created == 0) return;
  log_info("features were written {} times to new memory and {} times to used memory",
           counts.created, counts.reused);
}

}  // namespace percheron
