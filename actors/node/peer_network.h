#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "actors/node/bulk_way.h"
#include "actors/node/node_daemon.h"
#include "data/transport/bulk_client.h"
#include "data/transport/listener.h"

namespace percheron {

struct PeerOptions {
  ListenerOptions listener;
  std::vector<NodeAddress> seeds;  // nodes to join by
  Credentials credentials;
  // Of features on their way from other nodes, and at least of one micro-batch: 64K tokens of a
  // large target are 5 GiB. As much may wait, besides, to be used for the next ones.
  uint64_t pull_bytes_max = uint64_t{8} << 30;
  double silence_seconds = 3;  // after which a node counts as lost
  // For features between nodes that both have it; null: over TCP. The network itself sets
  // credentials.self.ucx, which tells the others.
  std::shared_ptr<UcxCarrier> ucx = nullptr;
};

/// A node's connections with the others. Every node opens one control connection to every other,
/// on which its own frames go, and learns of further nodes from those that it knows. Each says
/// twice a second that it lives. Thread-safe.
class PeerNetwork final : public PeerLinks {
 public:
  /// Listens and begins to join. `daemon` is borrowed and told of frames and losses. Errors as
  /// Listener::start().
  static Result<std::unique_ptr<PeerNetwork>> start(PeerOptions options, NodeDaemon& daemon,
                                                    RandomBytes& random, const Clock& clock);
  /// stop()
  ~PeerNetwork() override;

  Status send(const std::string& node, proto::Frame&& frame) override;
  Result<BulkRegions::Region> pull(const std::string& run, const proto::FeatureKey& key,
                                   PullCancellation* cancellation) override;
  RegionPoolCounts pull_counts() override { return memory_->pool.counts(); }
  std::vector<proto::NodeRecord> nodes() override;
  std::vector<proto::RunRecord> runs() override;
  std::vector<LostNode> lost() override;
  Result<proto::ControlReply> ask(const std::string& node, const proto::ControlRequest& request,
                                  std::chrono::milliseconds timeout) override;

  NodeAddress address() const { return listener_->advertised(); }
  /// Ends all connections.
  void stop();

 private:
  struct Peer {
    NodeAddress address;
    std::string name;                 // once it is known
    proto::NodeState state;           // as it last said
    std::shared_ptr<FrameLink> link;  // for what goes there; null while it is not connected
    std::shared_ptr<BulkClient> bulk;
    bool connecting = false;
    bool lost = false;     // it was silent, and has not come back
    double heard = 0;      // when; 0 = never
    double lost_at = 0;    // when it was heard last, where it is lost
    double try_again = 0;  // when to connect next
    double wait = 0;       // before the next try
    std::string why;       // the last try failed, as was said
    std::thread connector;
  };
  using PeerPtr = std::shared_ptr<Peer>;
  /// What pulls need; outlives the network as long as anybody holds what was pulled.
  struct PullMemory {
    explicit PullMemory(uint64_t bytes_max) : credits(bytes_max), pool("pulled", bytes_max) {}
    ByteCredits credits;
    RegionPool pool;
  };
  struct Pulled;
  /// Frames for a node that is not connected yet.
  struct Held {
    std::vector<proto::Frame> frames;
    double since = 0;
  };
  struct Call {
    bool answered = false;
    std::string reply;
  };

  /// Answers what another node asks.
  struct Caller {
    std::thread thread;
    bool done = false;
  };

  PeerNetwork(PeerOptions options, NodeDaemon& daemon, RandomBytes& random, const Clock& clock);

  void serve(Connection connection);
  void serve_control(Connection& connection);
  void take_state(const NodeIdentity& peer, const proto::NodeState& state);
  void take_call(const std::string& from, const proto::OperatorCall& call);
  void answer_call(const std::string& from, const proto::OperatorCall& call);
  void send_answer(const std::string& to, uint64_t call, const proto::ControlReply& reply);
  void know_locked(const NodeAddress& address);
  void send_held_locked(Peer& peer);
  std::vector<proto::Frame> take_overdue_locked();
  PeerPtr find_locked(const std::string& node);
  void connect(const PeerPtr& peer);
  Result<std::unique_ptr<ByteStream>> bulk_stream(const NodeAddress& address,
                                                  const std::string& name, Deadline deadline);
  void tick();
  proto::Frame state_frame();
  double now() const { return static_cast<double>(clock_.monotonic_ns()) * 1e-9; }

  const PeerOptions options_;
  NodeDaemon& daemon_;
  RandomBytes& random_;
  const Clock& clock_;
  const std::shared_ptr<PullMemory> memory_;
  BulkWay bulk_way_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<NodeAddress, PeerPtr> peers_;
  std::map<std::string, Held> held_;  // by node
  std::map<uint64_t, Call> calls_;
  uint64_t next_call_ = 1;
  bool stopping_ = false;
  std::unique_ptr<Listener> listener_;
  std::list<Caller> callers_;
  std::thread ticker_;  // last: it uses the others
};

}  // namespace percheron
