#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "base/status.h"
#include "tools/cluster_access.h"
#include "tools/node_client.h"

namespace percheron {

/// Which node an operator's command speaks to: options of the command line.
struct NodeAccess {
  std::string state = default_state_directory();
  std::string node;  // its address; empty = this machine's
  ClusterAccess access;

  void add_options(CLI::App* command);
  /// Errors as NodeClient::connect() and ClusterAccess::credentials().
  Result<NodeClient> connect() const;
};

}  // namespace percheron
