// What a node does for the features of its runs.

#include <map>
#include <utility>

#include "actors/node/endpoint.h"
#include "actors/node/node_daemon.h"
#include "base/log.h"

namespace percheron {

bool NodeDaemon::take_features(const Child& worker, const proto::Frame& frame, FileDescriptor& fd) {
  const pid_t process = worker.process->pid();
  switch (frame.body_case()) {
    case proto::Frame::kPublish: {
      const Status kept =
          features_.keep(worker.endpoint.run(), frame.publish(), process, std::move(fd));
      if (!kept.ok()) log_error("features of run {}: {}", worker.endpoint.run(), kept.message());
      break;
    }
    case proto::Frame::kFetch: fetch(worker, frame.fetch()); return true;
    case proto::Frame::kGivenBack:
      features_.given_back(process, frame.given_back().request());
      break;
    default: return false;
  }
  tell_freed();
  return true;
}

// A trainer fetches features while it computes: what it says meanwhile does not wait for a link.
void NodeDaemon::fetch(const Child& worker, const proto::FetchFeatures& fetch) {
  const bool here = fetch.key().node() == options_.name;
  if (!worker.puller || here) return send_features(worker, fetch, nullptr);
  // The worker outlives its puller's jobs: it is stopped before.
  worker.puller->post([this, &worker, fetch](PullCancellation& cancellation) {
    send_features(worker, fetch, &cancellation);
  });
}

void NodeDaemon::send_features(const Child& worker, const proto::FetchFeatures& fetch,
                               PullCancellation* cancellation) {
  const proto::FeatureKey& key = fetch.key();
  const std::string& run = worker.endpoint.run();
  const pid_t process = worker.process->pid();
  const auto find = [&]() -> Result<FileDescriptor> {
    if (key.node() == options_.name) return features_.lend(run, key, process, fetch.request());
    PeerLinks* const links = peers();
    if (links == nullptr) return not_found("there is no node " + key.node());
    PERCHERON_ASSIGN_OR_RETURN(FeatureRegions::Region pulled, links->pull(run, key, cancellation));
    return features_.lend(std::move(pulled), process, fetch.request());
  };
  Result<FileDescriptor> fd = find();
  proto::Frame reply;
  *reply.mutable_to() = worker.endpoint;
  *reply.mutable_from() = endpoint_of(options_.name, proto::Endpoint::DAEMON, "");
  reply.mutable_fetched()->set_request(fetch.request());
  if (!fd.ok()) {
    reply.mutable_fetched()->set_error(fd.status().message());
    return worker.link->send(std::move(reply));
  }
  worker.link->send(std::move(reply), std::move(fd).value());
}

void NodeDaemon::tell_freed() {
  std::map<pid_t, proto::Frame> frames;
  for (const FeatureRegions::Freed& freed : features_.take_freed()) {
    frames[freed.maker].mutable_regions_freed()->add_regions(freed.region);
  }
  if (frames.empty()) return;
  const std::lock_guard lock(mutex_);
  for (const auto& [key, child] : children_) {
    const auto frame = frames.find(child->process->pid());
    if (frame == frames.end()) continue;
    *frame->second.mutable_to() = child->endpoint;
    *frame->second.mutable_from() = endpoint_of(options_.name, proto::Endpoint::DAEMON, "");
    child->link->send(std::move(frame->second));
  }
}

}  // namespace percheron
