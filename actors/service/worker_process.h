#pragma once

#include <memory>

#include "base/clock.h"
#include "base/file_system.h"
#include "base/status.h"
#include "data/transport/frame_channel.h"

namespace percheron {

/// The process of a device of a run, or of those that hold a target together: its targets and
/// trainers, which speak with the rest of the run through the daemon that started it. Learns what
/// to do from the first frame on `daemon`; ends when the daemon closes the link. An error is told
/// to the run's supervisor before it is returned.
Status run_worker(std::unique_ptr<FrameChannel> daemon, FileSystem& files, const Clock& clock);

}  // namespace percheron
