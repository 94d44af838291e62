#include "actors/service/worker_features.h"

#include <fmt/format.h>

#include <utility>

#include "actors/messages.h"
#include "data/feature_block.h"
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

WorkerFeatures::WorkerFeatures(FrameLink& daemon, FileSystem& files, const Clock& clock,
                               proto::Endpoint self, std::vector<std::string> nodes)
    : daemon_(daemon),
      files_(files),
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
  PERCHERON_ASSIGN_OR_RETURN(FeatureRegion region, write_feature_region(files_, *features));
  produced.region_bytes = region.bytes;
  produced.crc32c = region.crc32c;
  proto::Frame frame = frame_to_daemon();
  set_key(features->batch.id, produced.work.generation, region.bytes, region.crc32c, self_.node(),
          frame.mutable_publish()->mutable_key());
  // Before the word that they are there, which takes the same way.
  daemon_.send(std::move(frame), std::move(region.fd));
  return ok_status();
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
      waiting_.emplace(next_request_++, std::move(done));
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
  Done done;
  {
    const std::lock_guard lock(mutex_);
    const auto waiting = waiting_.find(answer.request());
    if (waiting == waiting_.end()) return;  // It was closed meanwhile.
    done = std::move(waiting->second);
    waiting_.erase(waiting);
  }
  if (answer.has_error()) return done(unavailable(answer.error()));
  if (!fd.valid()) return done(internal_error("the daemon brought features without memory"));
  const auto held = std::make_shared<FileDescriptor>(std::move(fd));
  reader_.post([this, held, done = std::move(done)] { done(read(*held)); });
}

Result<FeaturesPtr> WorkerFeatures::read(const FileDescriptor& fd) {
  PERCHERON_ASSIGN_OR_RETURN(Features features, read_feature_block(files_, path_of(fd)));
  return std::make_shared<const Features>(std::move(features));
}

void WorkerFeatures::close() {
  std::map<uint64_t, Done> waiting;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    waiting.swap(waiting_);
  }
  for (auto& [request, done] : waiting) done(cancelled("this process ends"));
  reader_.stop();
}

}  // namespace percheron
