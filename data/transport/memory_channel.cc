#include <condition_variable>
#include <deque>
#include <mutex>

#include "data/transport/frame_channel.h"
#include "data/transport/frame_length.h"

namespace percheron {
namespace {

// Both directions and who has closed, shared by the two ends.
struct Pipes {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Frame> frames[2];  // towards end 0, towards end 1
  bool closed[2] = {false, false};
};

class MemoryChannel final : public FrameChannel {
 public:
  MemoryChannel(std::shared_ptr<Pipes> pipes, int end, size_t frame_bytes_max, size_t frames_max)
      : pipes_(std::move(pipes)),
        end_(end),
        frame_bytes_max_(frame_bytes_max),
        frames_max_(frames_max) {}
  ~MemoryChannel() override { MemoryChannel::close(); }

  Status send(std::string_view bytes, Deadline deadline, const FileDescriptor* fd) override {
    PERCHERON_RETURN_IF_ERROR(check_outgoing_length(bytes.size(), frame_bytes_max_, peer()));
    Frame frame{std::string(bytes), FileDescriptor()};
    if (fd != nullptr) {
      PERCHERON_ASSIGN_OR_RETURN(frame.fd, fd->duplicate());
    }
    std::unique_lock lock(pipes_->mutex);
    std::deque<Frame>& queue = pipes_->frames[1 - end_];
    const bool ready = wait(lock, deadline, [&] {
      return pipes_->closed[0] || pipes_->closed[1] || queue.size() < frames_max_;
    });
    if (pipes_->closed[end_]) return closed_here();
    if (pipes_->closed[1 - end_]) return unavailable(peer() + " closed the connection");
    if (!ready) return unavailable(peer() + " took no bytes in time");
    queue.push_back(std::move(frame));
    pipes_->changed.notify_all();
    return ok_status();
  }

  Result<std::optional<Frame>> receive(Deadline deadline) override {
    std::unique_lock lock(pipes_->mutex);
    std::deque<Frame>& queue = pipes_->frames[end_];
    const bool ready = wait(
        lock, deadline, [&] { return pipes_->closed[0] || pipes_->closed[1] || !queue.empty(); });
    if (pipes_->closed[end_]) return closed_here();
    if (!queue.empty()) {
      std::optional<Frame> frame(std::move(queue.front()));
      queue.pop_front();
      pipes_->changed.notify_all();
      return frame;
    }
    if (!ready) return std::optional<Frame>();
    return unavailable(peer() + " closed the connection");
  }

  void close() override {
    const std::lock_guard lock(pipes_->mutex);
    pipes_->closed[end_] = true;
    pipes_->changed.notify_all();
  }

  std::string peer() const override { return "the other end in memory"; }
  size_t frame_bytes_max() const override { return frame_bytes_max_; }

 private:
  // Waits for `ready()`; false when the deadline passes first.
  template <class Ready>
  bool wait(std::unique_lock<std::mutex>& lock, Deadline deadline, Ready ready) {
    // libstdc++ overflows on time_point::max().
    if (deadline.poll_ms() < 0) {
      pipes_->changed.wait(lock, ready);
      return true;
    }
    return pipes_->changed.wait_until(lock, deadline.time(), ready);
  }

  static Status closed_here() { return cancelled("the connection was closed here"); }

  const std::shared_ptr<Pipes> pipes_;
  const int end_;
  const size_t frame_bytes_max_;
  const size_t frames_max_;
};

}  // namespace

ChannelPair memory_channel_pair(size_t frame_bytes_max, size_t frames_max) {
  auto pipes = std::make_shared<Pipes>();
  return {std::make_unique<MemoryChannel>(pipes, 0, frame_bytes_max, frames_max),
          std::make_unique<MemoryChannel>(pipes, 1, frame_bytes_max, frames_max)};
}

}  // namespace percheron
