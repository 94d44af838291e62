#pragma once

#include "actors/run_metrics.h"
#include "proto/cluster.pb.h"

namespace percheron {

/// What `percheron train` says of its run to those who watch, as a node says it of its runs: one
/// run, and the devices of this process.
proto::ControlReply run_record(const RunMetrics& metrics);

}  // namespace percheron
