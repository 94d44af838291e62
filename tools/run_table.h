#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "proto/cluster.pb.h"

namespace percheron {

/// The runs of a node as a table for people, a line each and their messages below.
std::string run_table(const proto::ControlReply& reply);

/// The nodes of a cluster with their devices, and which run has each.
std::string node_table(const proto::ControlReply& reply);

/// Runs and nodes for programs (docs/service.md).
nlohmann::ordered_json runs_json(const proto::ControlReply& reply);

}  // namespace percheron
