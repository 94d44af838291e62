#pragma once

#include "actors/metrics_page.h"
#include "actors/node/node_daemon.h"
#include "actors/run_metrics.h"

namespace percheron {

/// Adds what a node and the runs that it has accepted are at. A run's values are those of its last
/// report, a few times a second. `peers`: null where the node is alone.
void collect_node_metrics(NodeDaemon& daemon, PeerLinks* peers, const BuildInfo& build,
                          MetricsPage& page);

/// As above, of one run.
void collect_run_record(const proto::RunRecord& record, MetricsPage& page);

}  // namespace percheron
