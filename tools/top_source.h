#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "base/status.h"
#include "proto/cluster.pb.h"
#include "tools/node_access.h"
#include "tools/top_view.h"

namespace percheron {

/// Where `percheron top` learns of runs. look() is called by one thread, order() by another.
class TopSource {
 public:
  virtual ~TopSource() = default;
  /// The runs as they are now. After an error the next call begins anew.
  virtual Result<proto::ControlReply> look() = 0;
  /// What was done, for people. May take minutes.
  virtual Result<std::string> order(const TopOrder& order) = 0;
  /// From any thread: those two end soon, with an error, now and from now on.
  virtual void close() = 0;
};

/// The runs of a node and of those that it knows.
class NodeSource final : public TopSource {
 public:
  /// `run`: only this one; empty = all.
  NodeSource(NodeAccess at, std::string run) : at_(std::move(at)), run_(std::move(run)) {}

  Result<proto::ControlReply> look() override;
  Result<std::string> order(const TopOrder& order) override;
  void close() override;

 private:
  using ClientPtr = std::shared_ptr<NodeClient>;

  /// Connects, and puts the connection where close() finds it.
  Result<ClientPtr> open(ClientPtr& place);

  const NodeAccess at_;
  const std::string run_;
  ClientPtr client_;  // of look(), which keeps it; null: to be connected

  std::mutex mutex_;
  bool closed_ = false;
  ClientPtr looking_, ordering_;  // for close()
};

}  // namespace percheron
