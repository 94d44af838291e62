#include "tools/node_metrics_page.h"

#include <utility>

#include "actors/node/node_metrics.h"
#include "tools/build_info.h"

namespace percheron {

Result<std::unique_ptr<NodeMetricsPage>> NodeMetricsPage::start(const std::string& address) {
  PERCHERON_ASSIGN_OR_RETURN(const MetricsAddress parsed, parse_metrics_address(address));
  std::unique_ptr<NodeMetricsPage> result(new NodeMetricsPage());
  result->loopback_ = parsed.loopback();
  const NodeMetricsPage* node = result.get();
  MetricsAnswers answers;
  answers.page = [node] { return node->page(); };
  answers.alive = [node] { return node->serving(), true; };
  answers.ready = [node] { return node->serving(); };
  answers.state = [node] { return node->serving() ? "serving" : "starting"; };
  PERCHERON_ASSIGN_OR_RETURN(result->server_, MetricsServer::start(parsed, std::move(answers)));
  return result;
}

void NodeMetricsPage::show(NodeDaemon* daemon, PeerLinks* peers) {
  const std::lock_guard lock(mutex_);
  daemon_ = daemon;
  peers_ = peers;
}

std::string NodeMetricsPage::page() const {
  const std::lock_guard lock(mutex_);
  MetricsPage page;
  if (daemon_) collect_node_metrics(*daemon_, peers_, build_info(), page);
  return page.text();
}

// Takes the daemon's lock: a daemon that hangs does not answer a probe either.
bool NodeMetricsPage::serving() const {
  const std::lock_guard lock(mutex_);
  if (!daemon_) return false;
  (void)daemon_->device_owners();
  return true;
}

std::string NodeMetricsPage::text() const {
  return "metrics: http://" + server_->address() + "/metrics" +
         (loopback_ ? "" : ", for everyone who reaches this address: there is no password");
}

}  // namespace percheron
