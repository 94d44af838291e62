#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "base/status.h"
#include "kernels/device.h"

namespace percheron {

/// Pinned memory of one stream by way of which small pieces of host memory go to the device: the
/// thread copies them and goes on, where a GPU would make it wait for the copy from other memory
/// and for all work before it. Reused in turn; used by the stream's thread.
class UploadRing {
 public:
  explicit UploadRing(Device& device) : device_(device) {}

  /// Puts the copy of `source`, which may go at once, into `stream`. Waits only for pieces that
  /// were put in a whole turn ago. Errors as Device::allocate_host() and Event::wait().
  Status put(Stream& stream, void* destination, const void* source, size_t bytes);
  /// The stream has done all its work: everything is free again.
  void all_done();

 private:
  struct Segment {
    std::unique_ptr<Event> copied;  // behind the segment's copies; made when it is first full
    bool busy = false;              // until `copied`
  };

  // Each is filled and then waited for as a whole.
  static constexpr size_t kSegmentBytes = size_t{2} << 20;
  static constexpr size_t kSegments = 4;

  Status next_segment(Stream& stream);

  Device& device_;
  Buffer memory_;  // kSegments of kSegmentBytes, once something was put in
  std::array<Segment, kSegments> segments_;
  size_t current_ = 0, used_ = 0;
};

}  // namespace percheron
