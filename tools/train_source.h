#pragma once

#include <string>

#include "data/transport/connect.h"
#include "tools/top_source.h"

namespace percheron {

/// The one run of a `percheron train --metrics`, read from its page /run.
class TrainSource final : public TopSource {
 public:
  /// "9464" is a port of this machine; else as NodeAddress::parse().
  static Result<NodeAddress> parse_address(const std::string& text);

  explicit TrainSource(NodeAddress address) : address_(std::move(address)) {}

  Result<proto::ControlReply> look() override;
  /// kFailedPrecondition: it takes none.
  Result<std::string> order(const TopOrder& order) override;
  void close() override {}  // A look takes seconds at most.

 private:
  const NodeAddress address_;
};

}  // namespace percheron
