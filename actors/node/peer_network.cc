#include "actors/node/peer_network.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "actors/node/operator_channel.h"
#include "base/log.h"

namespace percheron {
namespace {

constexpr auto kTick = std::chrono::milliseconds(500);
constexpr auto kConnectTimeout = std::chrono::milliseconds(3000);
constexpr auto kPullTimeout = std::chrono::minutes(5);
constexpr double kRetryMin = 0.5, kRetryMax = 10;  // seconds between tries to connect
constexpr double kHoldSeconds = 10;                // frames for a node that may connect yet
constexpr size_t kHeldMax = 1000;                  // of one node
constexpr size_t kPeersMax = 4096;
constexpr size_t kCallsMax = 64;  // of other nodes at once

}  // namespace

Result<std::unique_ptr<PeerNetwork>> PeerNetwork::start(PeerOptions options, NodeDaemon& daemon,
                                                        RandomBytes& random, const Clock& clock) {
  options.credentials.self.ucx = options.ucx != nullptr;
  const ListenerOptions listener = options.listener;
  const Credentials credentials = options.credentials;
  std::unique_ptr<PeerNetwork> network(new PeerNetwork(std::move(options), daemon, random, clock));
  PERCHERON_ASSIGN_OR_RETURN(
      network->listener_,
      Listener::start(listener, credentials, random, [self = network.get()](Connection connection) {
        self->serve(std::move(connection));
      }));
  {
    // Now that its own address is known: a cluster's nodes may all be given the same one to join.
    const std::lock_guard lock(network->mutex_);
    for (const NodeAddress& seed : network->options_.seeds) network->know_locked(seed);
  }
  network->ticker_ = std::thread([self = network.get()] { self->tick(); });
  return network;
}

PeerNetwork::PeerNetwork(PeerOptions options, NodeDaemon& daemon, RandomBytes& random,
                         const Clock& clock)
    : options_(std::move(options)),
      daemon_(daemon),
      random_(random),
      clock_(clock),
      memory_(std::make_shared<PullMemory>(options_.pull_bytes_max)),
      bulk_way_(options_.ucx, random, clock) {}

PeerNetwork::~PeerNetwork() { stop(); }

void PeerNetwork::stop() {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
    for (const auto& [address, peer] : peers_) {
      if (peer->link) peer->link->close();
      if (peer->bulk) peer->bulk->close();
    }
    changed_.notify_all();
  }
  if (ticker_.joinable()) ticker_.join();
  if (listener_) listener_->stop();
  for (const auto& [address, peer] : peers_) {
    if (peer->connector.joinable()) peer->connector.join();
  }
  for (Caller& caller : callers_) caller.thread.join();
}

// --- what comes in -------------------------------------------------------------------------------

void PeerNetwork::serve(Connection connection) {
  switch (connection.purpose) {
    case Purpose::kControl: return serve_control(connection);
    case Purpose::kBulk: {
      const std::string peer = connection.peer.name;
      const auto stream = bulk_way_.stream_of(std::move(connection), Deadline::never());
      const Status served =
          stream.ok() ? serve_bulk(**stream, daemon_.features().offered()) : stream.status();
      if (!served.ok()) log_info("bulk, {}: {}", peer, served.message());
      return;
    }
    case Purpose::kCli: {
      const std::unique_ptr<FrameChannel> channel = stream_channel(std::move(connection.stream));
      return serve_operator(daemon_, *channel);
    }
  }
}

void PeerNetwork::serve_control(Connection& connection) {
  const NodeIdentity peer = connection.peer;
  FrameLink link(stream_channel(std::move(connection.stream)), clock_);
  while (true) {
    Result<ReceivedFrame> received = link.receive();
    if (!received.ok()) {
      log_info("{} has closed its connection: {}", peer.name, received.status().message());
      return;
    }
    proto::Frame& frame = received->frame;
    if (frame.has_node_state()) {
      take_state(peer, frame.node_state());
    } else if (frame.has_operator_call()) {
      take_call(peer.name, frame.operator_call());
    } else if (frame.has_operator_answer()) {
      const std::lock_guard lock(mutex_);
      const auto call = calls_.find(frame.operator_answer().call());
      if (call == calls_.end()) continue;
      call->second = {true, frame.operator_answer().reply()};
      changed_.notify_all();
    } else if (frame.from().node() != peer.name || frame.to().node() != daemon_.name()) {
      log_warning("{} sent a frame of {} for {}, which is dropped", peer.name, frame.from().node(),
                  frame.to().node());
    } else {
      daemon_.route(std::move(frame));
    }
  }
}

void PeerNetwork::take_state(const NodeIdentity& peer, const proto::NodeState& state) {
  const Result<NodeAddress> address = NodeAddress::parse(state.address());
  if (!address.ok() || state.name() != peer.name) {
    log_warning("{} says that it is {} at {}: ignored", peer.name, state.name(), state.address());
    return;
  }
  bool again = false;
  {
    const std::lock_guard lock(mutex_);
    know_locked(*address);
    for (const std::string& text : state.peers()) {
      if (const Result<NodeAddress> other = NodeAddress::parse(text); other.ok())
        know_locked(*other);
    }
    const auto known = peers_.find(*address);
    if (known == peers_.end()) return;
    Peer& self = *known->second;
    for (const auto& [before, other] : peers_) {  // It is back at another address.
      if (other == known->second || other->name != state.name() || !other->lost) continue;
      other->name.clear();
      other->state.Clear();
      other->lost = false;
    }
    // It was quicker than its silence: its processes and features are gone all the same.
    again = self.heard > 0 && self.state.incarnation_uuid() != state.incarnation_uuid();
    if (again) log_warning("node {} at {} was started again", state.name(), state.address());
    if (self.heard == 0) {
      log_info("node {} at {} has joined", state.name(), state.address());
      self.try_again = 0;  // It can be reached again.
    }
    self.name = state.name();
    self.state = state;
    self.heard = now();
    send_held_locked(self);
    changed_.notify_all();
  }
  if (again) daemon_.node_lost(peer.name);
}

// The caller holds the mutex.
void PeerNetwork::know_locked(const NodeAddress& address) {
  if (listener_ && address == listener_->advertised()) return;
  if (peers_.count(address) != 0 || peers_.size() >= kPeersMax) return;
  const auto peer = std::make_shared<Peer>();
  peer->address = address;
  peers_[address] = peer;
}

void PeerNetwork::take_call(const std::string& from, const proto::OperatorCall& call) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    std::erase_if(callers_, [](Caller& caller) {
      if (caller.done) caller.thread.join();
      return caller.done;
    });
    if (callers_.size() < kCallsMax) {
      Caller& caller = callers_.emplace_back();
      caller.thread = std::thread([this, &caller, from, call] {
        answer_call(from, call);
        const std::lock_guard done(mutex_);
        caller.done = true;
      });
      return;
    }
  }
  proto::ControlReply reply;
  reply.set_error(
      fmt::format("node {} answers {} requests of other nodes at once, which is the "
                  "limit: try again later",
                  daemon_.name(), kCallsMax));
  send_answer(from, call.call(), reply);
}

void PeerNetwork::answer_call(const std::string& from, const proto::OperatorCall& call) {
  proto::ControlRequest request;
  proto::ControlReply reply;
  if (request.ParseFromString(call.request())) {
    reply = daemon_.answer(request, std::chrono::minutes(10));
  } else {
    reply.set_error("another node's request can't be read");
  }
  send_answer(from, call.call(), reply);
}

void PeerNetwork::send_answer(const std::string& to, uint64_t call,
                              const proto::ControlReply& reply) {
  proto::Frame frame;
  frame.mutable_operator_answer()->set_call(call);
  frame.mutable_operator_answer()->set_reply(reply.SerializeAsString());
  const Status sent = send(to, std::move(frame));
  if (!sent.ok()) log_warning("the answer for {} is lost: {}", to, sent.message());
}

// --- what goes out -------------------------------------------------------------------------------

PeerNetwork::PeerPtr PeerNetwork::find_locked(const std::string& node) {
  for (const auto& [address, peer] : peers_) {
    if (peer->name == node) return peer;
  }
  return nullptr;
}

void PeerNetwork::send_held_locked(Peer& peer) {
  const auto held = held_.find(peer.name);
  if (held == held_.end() || !peer.link) return;
  for (proto::Frame& frame : held->second.frames) peer.link->send(std::move(frame));
  held_.erase(held);
}

std::vector<proto::Frame> PeerNetwork::take_overdue_locked() {
  std::vector<proto::Frame> overdue;
  for (auto held = held_.begin(); held != held_.end();) {
    if (now() - held->second.since < kHoldSeconds) {
      ++held;
      continue;
    }
    for (proto::Frame& frame : held->second.frames) overdue.push_back(std::move(frame));
    held = held_.erase(held);
  }
  return overdue;
}

Status PeerNetwork::send(const std::string& node, proto::Frame&& frame) {
  const std::lock_guard lock(mutex_);
  const PeerPtr peer = find_locked(node);
  if (peer && peer->link) {
    peer->link->send(std::move(frame));
    return ok_status();
  }
  if (peer && peer->lost) return unavailable("node " + node + " can't be reached");
  // Two nodes that get to know each other may speak before both ways are open.
  Held& held = held_.try_emplace(node, Held{{}, now()}).first->second;
  if (held.frames.size() >= kHeldMax) return unavailable("node " + node + " is not connected");
  held.frames.push_back(std::move(frame));
  return ok_status();
}

Result<std::unique_ptr<ByteStream>> PeerNetwork::bulk_stream(const NodeAddress& address,
                                                             const std::string& name,
                                                             Deadline deadline) {
  return bulk_way_.open(
      name,
      [&] {
        return connect_node(address, name, options_.credentials, Purpose::kBulk, random_, deadline);
      },
      deadline);
}

// What was pulled, until its last reader is gone: then its memory is used again.
struct PeerNetwork::Pulled {
  Pulled(std::shared_ptr<PullMemory> owner, PulledRegion what)
      : memory(std::move(owner)), pulled(std::move(what)) {}
  Pulled(const Pulled&) = delete;
  Pulled& operator=(const Pulled&) = delete;
  ~Pulled() { memory->pool.give_back(std::move(pulled.region)); }

  const std::shared_ptr<PullMemory> memory;
  PulledRegion pulled;
};

Result<BulkRegions::Region> PeerNetwork::pull(const std::string& run, const proto::FeatureKey& key,
                                              PullCancellation* cancellation) {
  std::shared_ptr<BulkClient> bulk;
  {
    const std::lock_guard lock(mutex_);
    const PeerPtr peer = find_locked(key.node());
    if (!peer) return not_found("there is no node " + key.node());
    if (peer->lost) return unavailable("node " + key.node() + " can't be reached");
    if (!peer->bulk) {
      peer->bulk = std::make_shared<BulkClient>(
          key.node(),
          [this, address = peer->address, name = key.node()](Deadline deadline) {
            return bulk_stream(address, name, deadline);
          },
          memory_->credits);
    }
    bulk = peer->bulk;
  }
  const BulkRequest request{FeatureRegions::slot(run, {key.epoch(), key.index()}),
                            static_cast<uint64_t>(key.generation()) + 1, key.bytes(), key.crc32c()};
  PERCHERON_ASSIGN_OR_RETURN(
      PulledRegion pulled,
      bulk->pull_into(memory_->pool, request, Deadline::after(kPullTimeout), cancellation));
  const auto held = std::make_shared<Pulled>(memory_, std::move(pulled));
  return BulkRegions::Region(held, &held->pulled.region);
}

std::vector<proto::NodeRecord> PeerNetwork::nodes() {
  const std::lock_guard lock(mutex_);
  std::vector<proto::NodeRecord> nodes;
  for (const auto& [address, peer] : peers_) {
    proto::NodeRecord record;
    record.set_address(address.text());
    record.set_drained(peer->state.drained());
    record.set_reachable(peer->link && peer->heard > 0);
    if (!peer->name.empty()) record.set_name(peer->name);
    if (peer->heard > 0) {
      record.set_node_uuid(peer->state.node_uuid());
      record.set_incarnation_uuid(peer->state.incarnation_uuid());
      record.set_version(peer->state.version());
      record.set_seen_seconds_ago(now() - peer->heard);
      for (const proto::DeviceState& device : peer->state.devices()) add_device(device, record);
    }
    nodes.push_back(record);
  }
  return nodes;
}

std::vector<proto::RunRecord> PeerNetwork::runs() {
  const std::lock_guard lock(mutex_);
  std::vector<proto::RunRecord> runs;
  for (const auto& [address, peer] : peers_) {
    for (const std::string& bytes : peer->state.runs()) {
      proto::RunRecord record;
      if (record.ParseFromString(bytes)) runs.push_back(record);
    }
  }
  return runs;
}

std::vector<PeerLinks::LostNode> PeerNetwork::lost() {
  const std::lock_guard lock(mutex_);
  std::vector<LostNode> nodes;
  for (const auto& [address, peer] : peers_) {
    if (!peer->lost || peer->heard > 0) continue;
    LostNode& node = nodes.emplace_back(LostNode{peer->name, now() - peer->lost_at, {}});
    for (const std::string& bytes : peer->state.runs()) {
      proto::RunRecord record;
      if (record.ParseFromString(bytes)) node.runs.push_back(record);
    }
  }
  return nodes;
}

Result<proto::ControlReply> PeerNetwork::ask(const std::string& node,
                                             const proto::ControlRequest& request,
                                             std::chrono::milliseconds timeout) {
  proto::Frame frame;
  uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    number = next_call_++;
    calls_[number] = {};
  }
  frame.mutable_operator_call()->set_call(number);
  frame.mutable_operator_call()->set_request(request.SerializeAsString());
  const Status sent = send(node, std::move(frame));
  std::unique_lock lock(mutex_);
  if (sent.ok()) {
    changed_.wait_for(lock, timeout, [&] {
      const PeerPtr peer = find_locked(node);
      return stopping_ || calls_[number].answered || (peer && peer->lost);
    });
  }
  const Call call = calls_[number];
  calls_.erase(number);
  PERCHERON_RETURN_IF_ERROR(sent);
  proto::ControlReply reply;
  if (!call.answered || !reply.ParseFromString(call.reply)) {
    return unavailable("node " + node + " has not answered");
  }
  return reply;
}

// --- life ----------------------------------------------------------------------------------------

proto::Frame PeerNetwork::state_frame() {
  proto::Frame frame;
  proto::NodeState& state = *frame.mutable_node_state();
  state.set_name(daemon_.name());
  state.set_node_uuid(options_.credentials.self.node_uuid);
  state.set_incarnation_uuid(options_.credentials.self.incarnation_uuid);
  state.set_address(listener_->advertised().text());
  state.set_version(options_.credentials.self.build_version);
  state.set_drained(daemon_.drained());
  for (const proto::RunRecord& record : daemon_.own_runs()) {
    state.add_runs(record.SerializeAsString());
  }
  for (proto::DeviceState& device : daemon_.devices()) *state.add_devices() = std::move(device);
  const std::lock_guard lock(mutex_);
  for (const auto& [address, peer] : peers_) {
    if (peer->heard > 0) state.add_peers(address.text());
  }
  return frame;
}

void PeerNetwork::connect(const PeerPtr& peer) {
  std::string name;
  {
    const std::lock_guard lock(mutex_);
    name = peer->name;
  }
  Result<Connection> connection =
      connect_node(peer->address, name, options_.credentials, Purpose::kControl, random_,
                   Deadline::after(kConnectTimeout));
  const proto::Frame state = state_frame();
  const std::lock_guard lock(mutex_);
  peer->connecting = false;
  if (stopping_) return;
  if (!connection.ok()) {
    // Once, not at every try; but one that is there again may refuse.
    const std::string& why = connection.status().message();
    if (peer->why != why) log_warning("{}", why);
    peer->why = why;
    peer->wait = std::clamp(peer->wait * 2, kRetryMin, kRetryMax);
    peer->try_again = now() + peer->wait;
    return;
  }
  peer->wait = 0;
  peer->why.clear();
  peer->lost = false;
  peer->name = connection->peer.name;
  peer->link = std::make_shared<FrameLink>(stream_channel(std::move(connection->stream)), clock_);
  // Before anything else: a node that was started again is known by it, and what it had before is
  // ended there. A worker that it starts now must not be taken for one of those.
  peer->link->send(state);
  send_held_locked(*peer);
}

void PeerNetwork::tick() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kTick, [this] { return stopping_; });
      if (stopping_) return;
    }
    const proto::Frame state = state_frame();
    std::vector<std::string> lost;
    std::vector<proto::Frame> overdue;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      overdue = take_overdue_locked();
      for (const auto& [address, peer] : peers_) {
        if (peer->link && peer->link->ended()) peer->link.reset();
        if (peer->heard > 0 && now() - peer->heard > options_.silence_seconds) {
          log_warning("node {} at {} has been silent for {:.1f} s", peer->name, address.text(),
                      now() - peer->heard);
          lost.push_back(peer->name);
          peer->lost_at = peer->heard;
          peer->heard = 0;
          peer->lost = true;
          changed_.notify_all();  // Whoever asked it waits no longer.
          peer->link.reset();
          if (peer->bulk) peer->bulk->close();  // Whoever pulls waits no longer.
          peer->bulk.reset();
        }
        if (peer->link) {
          peer->link->send(state);
        } else if (!peer->connecting && now() >= peer->try_again) {
          if (peer->connector.joinable()) peer->connector.join();
          peer->connecting = true;
          peer->connector = std::thread([this, peer = peer] { connect(peer); });
        }
      }
    }
    for (const std::string& node : lost) daemon_.node_lost(node);
    for (const proto::Frame& frame : overdue) {
      daemon_.undeliverable(frame, unavailable("node " + frame.to().node() + " can't be reached"));
    }
  }
}

}  // namespace percheron
