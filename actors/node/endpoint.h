#pragma once

#include <string>

#include "proto/control.pb.h"

namespace percheron {

inline proto::Endpoint endpoint_of(const std::string& node, proto::Endpoint::Kind kind,
                                   const std::string& run, const std::string& device = "") {
  proto::Endpoint endpoint;
  endpoint.set_node(node);
  endpoint.set_kind(kind);
  if (!run.empty()) endpoint.set_run(run);
  if (!device.empty()) endpoint.set_device(device);
  return endpoint;
}

}  // namespace percheron
