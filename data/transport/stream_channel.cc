#include <algorithm>
#include <array>
#include <mutex>

#include "data/transport/frame_channel.h"
#include "data/transport/frame_length.h"

namespace percheron {
namespace {

class StreamChannel final : public FrameChannel {
 public:
  StreamChannel(std::unique_ptr<ByteStream> stream, size_t frame_bytes_max)
      : stream_(std::move(stream)), frame_bytes_max_(frame_bytes_max) {}

  Status send(std::string_view bytes, Deadline deadline, const FileDescriptor* fd) override {
    if (fd != nullptr) {
      return invalid_argument("a file descriptor cannot be sent to " + peer() +
                              ": only Unix sockets carry them");
    }
    PERCHERON_RETURN_IF_ERROR(check_outgoing_length(bytes.size(), frame_bytes_max_, peer()));
    const auto length = encode_length(bytes.size());
    const std::lock_guard lock(send_mutex_);
    if (!send_error_.ok()) return send_error_;
    // In one piece where it is small, as most frames are: fewer packets and TLS records.
    if (bytes.size() <= kOnePieceBytesMax) {
      outgoing_.assign(length.begin(), length.end());
      outgoing_.append(bytes);
      send_error_ = stream_->write(std::as_bytes(std::span(outgoing_)), deadline);
    } else {
      send_error_ = stream_->write(std::as_bytes(std::span(length)), deadline);
      if (send_error_.ok()) send_error_ = stream_->write(std::as_bytes(std::span(bytes)), deadline);
    }
    return send_error_;
  }

  Result<std::optional<Frame>> receive(Deadline deadline) override {
    const std::lock_guard lock(receive_mutex_);
    PERCHERON_ASSIGN_OR_RETURN(const bool have_length, fill(length_, length_filled_, deadline));
    if (!have_length) return std::optional<Frame>();
    const size_t size = decode_length(length_);
    PERCHERON_RETURN_IF_ERROR(check_incoming_length(size, frame_bytes_max_, peer()));
    // Grows as bytes come: who announces much and sends little costs little.
    while (filled_ < size) {
      if (filled_ == incoming_.size()) {
        incoming_.resize(std::min(size, std::max(2 * filled_, kFirstBytes)));
      }
      PERCHERON_ASSIGN_OR_RETURN(const bool more, fill(incoming_, filled_, deadline));
      if (!more) return std::optional<Frame>();
    }
    Frame frame;
    frame.bytes = std::move(incoming_);
    incoming_.clear();
    length_filled_ = filled_ = 0;
    return std::optional<Frame>(std::move(frame));
  }

  void close() override { stream_->close(); }
  std::string peer() const override { return stream_->peer(); }
  size_t frame_bytes_max() const override { return frame_bytes_max_; }

 private:
  static constexpr size_t kOnePieceBytesMax = size_t{64} << 10;
  static constexpr size_t kFirstBytes = size_t{64} << 10;

  // Reads into `bytes` behind `filled`. False when the deadline passes before it is full.
  Result<bool> fill(std::span<char> bytes, size_t& filled, Deadline deadline) {
    while (filled < bytes.size()) {
      PERCHERON_ASSIGN_OR_RETURN(
          const std::optional<size_t> count,
          stream_->read_some(std::as_writable_bytes(bytes.subspan(filled)), deadline));
      if (!count) return false;
      if (*count == 0) return unavailable(peer() + " closed the connection");
      filled += *count;
    }
    return true;
  }

  const std::unique_ptr<ByteStream> stream_;
  const size_t frame_bytes_max_;
  std::mutex send_mutex_;
  Status send_error_;     // guarded by send_mutex_, as outgoing_
  std::string outgoing_;  // kept for its memory
  std::mutex receive_mutex_;
  // Of the frame that is coming; guarded by receive_mutex_.
  std::array<char, kLengthBytes> length_{};
  size_t length_filled_ = 0;
  std::string incoming_;
  size_t filled_ = 0;
};

}  // namespace

std::unique_ptr<FrameChannel> stream_channel(std::unique_ptr<ByteStream> stream,
                                             size_t frame_bytes_max) {
  return std::make_unique<StreamChannel>(std::move(stream), frame_bytes_max);
}

}  // namespace percheron
