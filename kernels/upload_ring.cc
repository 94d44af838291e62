#include "kernels/upload_ring.h"

#include <algorithm>
#include <cstring>

namespace percheron {
namespace {

constexpr size_t kAlignmentBytes = 64;

}  // namespace

Status UploadRing::put(Stream& stream, void* destination, const void* source, size_t bytes) {
  if (bytes > 0 && memory_.data() == nullptr) {
    PERCHERON_ASSIGN_OR_RETURN(memory_, device_.allocate_host(kSegments * kSegmentBytes));
  }
  auto* to = static_cast<char*>(destination);
  const auto* from = static_cast<const char*>(source);
  while (bytes > 0) {
    if (used_ == kSegmentBytes) PERCHERON_RETURN_IF_ERROR(next_segment(stream));
    const size_t piece = std::min(bytes, kSegmentBytes - used_);
    char* const staged = static_cast<char*>(memory_.data()) + current_ * kSegmentBytes + used_;
    std::memcpy(staged, from, piece);
    device_.copy_bytes(stream, to, staged, piece);
    to += piece;
    from += piece;
    bytes -= piece;
    used_ = std::min(kSegmentBytes,
                     (used_ + piece + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes);
  }
  return ok_status();
}

Status UploadRing::next_segment(Stream& stream) {
  Segment& full = segments_[current_];
  if (full.copied == nullptr) full.copied = device_.make_event();
  stream.record(*full.copied);
  full.busy = true;
  current_ = (current_ + 1) % kSegments;
  used_ = 0;
  Segment& next = segments_[current_];
  if (!next.busy) return ok_status();
  next.busy = false;
  return next.copied->wait();
}

void UploadRing::all_done() {
  for (Segment& segment : segments_) segment.busy = false;
  used_ = 0;
}

}  // namespace percheron
