#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "data/transport/file_descriptor.h"

namespace percheron {

/// Memory that processes of one machine share: an anonymous file (memfd) of a fixed, sealed size,
/// mapped as long as the object lives. It is handed over by its descriptor, without a copy, and
/// outlives the process that made it. Movable; not synchronised: who writes says when he is done.
class SharedRegion {
 public:
  enum class Backing {
    kOnDemand,  // pages come as they are touched; too little memory then ends the process
    kReserved,  // all pages now, so that too little memory is an error here
  };

  /// Zero bytes, readable and writable; with huge pages where the system grants them. `name` is for
  /// /proc/PID/maps. kInvalidArgument for `bytes` == 0, kResourceExhausted without memory.
  static Result<SharedRegion> create(const std::string& name, size_t bytes, Backing backing);

  enum class Access { kRead, kReadWrite };
  /// Maps what another process made. kDataLoss unless `fd` is such a region of exactly `bytes`
  /// bytes with its size sealed: a peer could otherwise cut it off under a reader.
  static Result<SharedRegion> map(FileDescriptor fd, size_t bytes, Access access);
  /// As map() of one of at least `bytes` bytes, of which its maker may have used but these.
  static Result<SharedRegion> map_at_least(FileDescriptor fd, size_t bytes, Access access);

  ~SharedRegion() { reset(); }
  SharedRegion(SharedRegion&& other) noexcept;
  SharedRegion& operator=(SharedRegion&& other) noexcept;

  size_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  /// Only where access() is kReadWrite.
  std::span<std::byte> writable_bytes();
  Access access() const { return access_; }
  /// Allocates the pages of a part that is writable here, as kReserved does of all. Several threads
  /// may do so for parts of their own. Costs nothing where all have been reserved or written.
  Status reserve(size_t offset, size_t bytes);
  /// All of the first `bytes` bytes have been written, so that their pages are there.
  void note_written(size_t bytes);
  /// Bytes at the start that are known to have been reserved or written.
  size_t written_bytes() const { return backed_; }

  /// Borrowed, to be sent with FrameChannel::send().
  const FileDescriptor& fd() const { return fd_; }

  /// From now on only this object's mapping can write, for good, and with its end nobody: who has
  /// the descriptor can map it for reading. For memory that is used again. Needs Linux 5.1.
  Status seal_for_others();

 private:
  SharedRegion(FileDescriptor fd, std::byte* data, size_t size, Access access)
      : fd_(std::move(fd)), data_(data), size_(size), access_(access) {}
  static Result<SharedRegion> map_whole(FileDescriptor fd, size_t size, Access access);
  void reset();

  FileDescriptor fd_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  size_t backed_ = 0;  // bytes at the start whose pages are known to be there
  Access access_ = Access::kRead;
};

}  // namespace percheron
