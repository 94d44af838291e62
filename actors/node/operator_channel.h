#pragma once

#include "actors/node/node_daemon.h"
#include "data/transport/frame_channel.h"

namespace percheron {

/// Answers an operator's requests, one after the other, until the connection ends.
void serve_operator(NodeDaemon& daemon, FrameChannel& channel);

}  // namespace percheron
