#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "actors/metrics_server.h"
#include "actors/node/node_daemon.h"

namespace percheron {

/// A node's metrics and the server that shows them, for `percheron node --metrics`.
class NodeMetricsPage {
 public:
  /// `address` as parse_metrics_address() reads it. Errors as MetricsServer::start(). Until show()
  /// the node is not ready.
  static Result<std::unique_ptr<NodeMetricsPage>> start(const std::string& address);

  /// From now on the page is about `daemon`, borrowed until the next call; null: about nothing.
  void show(NodeDaemon* daemon, PeerLinks* peers);
  /// Where it is, and a warning when others can read it.
  std::string text() const;

 private:
  NodeMetricsPage() = default;
  std::string page() const;
  bool serving() const;

  bool loopback_ = true;
  mutable std::mutex mutex_;
  NodeDaemon* daemon_ = nullptr;
  PeerLinks* peers_ = nullptr;
  std::unique_ptr<MetricsServer> server_;  // last: it asks the others
};

}  // namespace percheron
