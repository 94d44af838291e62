#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "base/status.h"
#include "data/transport/connect.h"
#include "data/transport/frame_channel.h"
#include "proto/cluster.pb.h"

namespace percheron {

/// Where a node keeps what it knows and where its operators find it: $PERCHERON_STATE, else
/// /var/lib/percheron for root and ~/.local/state/percheron for others.
std::string default_state_directory();
/// The socket of the node whose state is there.
std::string operator_socket(const std::string& state_directory);

/// How long a node may take to answer; an order takes effect at a step's end.
inline constexpr std::chrono::seconds kOrderTimeout{600};

/// A connection with a node.
class NodeClient {
 public:
  /// kUnavailable when no node runs there; says how one is started.
  static Result<NodeClient> connect(const std::string& state_directory);
  /// A node of a cluster, anywhere. `credentials` are the operator's.
  static Result<NodeClient> connect(const NodeAddress& address, const Credentials& credentials);

  /// Asks and waits for the answer. The error in a reply comes as a Status; kUnavailable when none
  /// has come within `timeout`, and the connection is then of no more use.
  Result<proto::ControlReply> ask(proto::ControlRequest request,
                                  std::chrono::milliseconds timeout = kOrderTimeout +
                                                                      std::chrono::seconds(30));
  /// From any thread: ask() returns.
  void close() { channel_->close(); }

 private:
  explicit NodeClient(std::unique_ptr<FrameChannel> channel) : channel_(std::move(channel)) {}

  std::unique_ptr<FrameChannel> channel_;
  uint64_t next_ = 1;
};

}  // namespace percheron
