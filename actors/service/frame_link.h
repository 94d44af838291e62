#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "actors/policy/reader_turn.h"
#include "actors/work_thread.h"
#include "base/clock.h"
#include "base/status.h"
#include "data/transport/frame_channel.h"
#include "proto/control.pb.h"

namespace percheron {

/// A frame that came over a link, with the file descriptor that came with it, if any.
struct ReceivedFrame {
  proto::Frame frame;
  FileDescriptor fd;
};

/// A link that carries proto::Frame: of a process of a run with its daemon, or of two daemons.
/// Frames to send wait in order for a thread of their own, so that nobody who sends is held up by
/// the other side. Thread-safe.
class FrameLink {
 public:
  /// `clock` is borrowed.
  FrameLink(std::unique_ptr<FrameChannel> channel, const Clock& clock);
  ~FrameLink() { close(); }

  /// Sends later, in order. A frame that can't be sent, and a peer that takes so little that
  /// kWaitingMax of them wait, ends the link, which receive() tells.
  void send(proto::Frame frame, FileDescriptor fd = {});
  /// Waits for the next frame; one thread reads. kUnavailable or kCancelled when the link has
  /// ended, kDataLoss for bytes that are no frame.
  Result<ReceivedFrame> receive();
  /// Waits until everything given to send() before is on its way, or the link has ended.
  void flush() { sender_.drain(); }
  void close();
  /// Whether nothing can be sent any more.
  bool ended() const { return ended_; }
  std::string peer() const { return channel_->peer(); }
  /// What the thread that reads is at: it deals with a frame from one receive() to the next, unless
  /// it says that it rests.
  ReaderTurn& turn() { return turn_; }

 private:
  static constexpr size_t kWaitingMax = WorkThread::kJobsMax / 2;
  // A process that takes nothing for so long is stopped or gone.
  static constexpr std::chrono::milliseconds kSendTimeout{30'000};
  static constexpr std::chrono::milliseconds kTurn{200};  // of the reader, while nothing comes

  std::unique_ptr<FrameChannel> channel_;
  std::atomic<bool> ended_{false};
  ReaderTurn turn_;
  WorkThread sender_;  // last: it uses the channel
};

}  // namespace percheron
