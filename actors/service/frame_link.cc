#include "actors/service/frame_link.h"

#include <utility>

#include "base/log.h"

namespace percheron {

FrameLink::FrameLink(std::unique_ptr<FrameChannel> channel, const Clock& clock)
    : channel_(std::move(channel)), sender_("link", clock) {}

void FrameLink::send(proto::Frame frame, FileDescriptor fd) {
  if (ended_) return;
  if (sender_.waiting() >= kWaitingMax) {
    log_warning("the link with {} ends: {} frames wait for it", channel_->peer(), kWaitingMax);
    ended_ = true;
    channel_->close();
    return;
  }
  // A job must be copyable, which a descriptor is not.
  const auto held = std::make_shared<FileDescriptor>(std::move(fd));
  sender_.post([this, frame = std::move(frame), held] {
    const Status sent = channel_->send(frame.SerializeAsString(), Deadline::after(kSendTimeout),
                                       held->valid() ? held.get() : nullptr);
    if (sent.ok() || sent.code() == StatusCode::kCancelled) return;
    log_warning("the link with {} ends: {}", channel_->peer(), sent.message());
    ended_ = true;
    channel_->close();
  });
}

Result<ReceivedFrame> FrameLink::receive() {
  std::optional<Frame> frame;
  while (!frame) {
    turn_.waits();
    Result<std::optional<Frame>> came = channel_->receive(Deadline::after(kTurn));
    if (!came.ok()) {
      turn_.rests();
      return came.status();
    }
    frame = std::move(came).value();
  }
  ReceivedFrame received;
  if (!received.frame.ParseFromString(frame->bytes)) {
    turn_.rests();
    return data_loss("what " + channel_->peer() + " sent is no frame of this protocol");
  }
  received.fd = std::move(frame->fd);
  turn_.deals();
  return received;
}

void FrameLink::close() {
  ended_ = true;
  channel_->close();
  sender_.stop();
}

}  // namespace percheron
