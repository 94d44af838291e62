#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "base/clock.h"
#include "base/file_system.h"
#include "base/status.h"
#include "data/transport/hello.h"

namespace percheron {

/// How a program shows a cluster's nodes that it belongs to them: options of the command line.
struct ClusterAccess {
  std::string certificates;  // a directory of `percheron certs`
  std::string certificate;   // NAME in it; default: the node's
  std::string secret;        // a file; default: that of the directory
  bool insecure = false;

  void add_options(CLI::App* command);
  bool given() const { return insecure || !certificates.empty(); }
  /// For the node or user `name`. kInvalidArgument for options that contradict each other; errors
  /// of the files name them.
  Result<Credentials> credentials(FileSystem& files, const Clock& clock,
                                  const std::string& name) const;
};

}  // namespace percheron
