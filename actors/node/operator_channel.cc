#include "actors/node/operator_channel.h"

#include <chrono>
#include <optional>

namespace percheron {
namespace {

// An order takes effect at a step's end.
constexpr auto kOrderTimeout = std::chrono::minutes(10);
constexpr auto kSendTimeout = std::chrono::seconds(30);

}  // namespace

void serve_operator(NodeDaemon& daemon, FrameChannel& channel) {
  while (true) {
    const Result<std::optional<Frame>> frame = channel.receive(Deadline::never());
    if (!frame.ok() || !*frame) return;
    proto::ControlRequest request;
    proto::ControlReply reply;
    if (request.ParseFromString((*frame)->bytes)) {
      reply = daemon.answer(request, kOrderTimeout);
    } else {
      reply.set_error("this is no request: are both programs of the same version?");
    }
    if (!channel.send(reply.SerializeAsString(), Deadline::after(kSendTimeout)).ok()) return;
  }
}

}  // namespace percheron
