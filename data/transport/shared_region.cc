#include "data/transport/shared_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/check.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010  // Linux 5.1
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

namespace percheron {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

std::string named(const std::string& action, const std::string& name, size_t bytes) {
  return action + " the shared region " + name + " of " + std::to_string(bytes) + " bytes";
}

Result<std::byte*> map_memory(const FileDescriptor& fd, size_t bytes, SharedRegion::Access access) {
  const int protection = access == SharedRegion::Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  void* data = ::mmap(nullptr, bytes, protection, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) {
    return os_error("map a shared region of " + std::to_string(bytes) + " bytes", errno);
  }
  // Only advice: where huge pages are off it fails and nothing is lost but speed.
  ::madvise(data, bytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(data);
}

// Allocates pages [begin, end), so that a lack of memory is an error and no signal.
Status populate(const FileDescriptor& fd, std::byte* data, size_t begin, size_t end) {
  int result;
  do {
    result = ::madvise(data + begin, end - begin, MADV_POPULATE_WRITE);
  } while (result < 0 && errno == EINTR);
  if (result == 0) return ok_status();
  // A fault that memory is lacking for reads as EFAULT here.
  if (errno != EINVAL) return os_error("reserve memory", errno == EFAULT ? ENOMEM : errno);
  // An older kernel.
  do {
    result =
        ::posix_fallocate(fd.get(), static_cast<off_t>(begin), static_cast<off_t>(end - begin));
  } while (result == EINTR);
  return result == 0 ? ok_status() : os_error("reserve memory", result);
}

Result<size_t> size_of(const FileDescriptor& fd) {
  struct stat info;
  if (::fstat(fd.get(), &info) < 0) return os_error("ask the size of a shared region", errno);
  return static_cast<size_t>(info.st_size);
}

}  // namespace

Result<SharedRegion> SharedRegion::create(const std::string& name, size_t bytes, Backing backing) {
  if (bytes == 0) return invalid_argument("the shared region " + name + " would have no bytes");
  FileDescriptor fd(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return os_error(named("create", name, bytes), errno);
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) < 0) {
    return os_error(named("size", name, bytes), errno);
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, kSizeSeals) < 0) {
    return os_error(named("seal", name, bytes), errno);
  }
  const Result<std::byte*> data = map_memory(fd, bytes, Access::kReadWrite);
  if (!data.ok()) return data.status().with_context("the shared region " + name);
  SharedRegion region(std::move(fd), *data, bytes, Access::kReadWrite);
  if (backing == Backing::kReserved) {
    const Status populated = region.reserve(0, bytes);
    if (!populated.ok()) return populated.with_context(named("create", name, bytes));
    region.backed_ = bytes;
  }
  return region;
}

Result<SharedRegion> SharedRegion::map(FileDescriptor fd, size_t bytes, Access access) {
  PERCHERON_ASSIGN_OR_RETURN(const size_t size, size_of(fd));
  if (size != bytes) {
    return data_loss("a shared region has " + std::to_string(size) + " bytes, not " +
                     std::to_string(bytes) + " as its sender says");
  }
  return map_whole(std::move(fd), size, access);
}

Result<SharedRegion> SharedRegion::map_at_least(FileDescriptor fd, size_t bytes, Access access) {
  PERCHERON_ASSIGN_OR_RETURN(const size_t size, size_of(fd));
  if (size < bytes) {
    return data_loss("a shared region has " + std::to_string(size) + " bytes, fewer than the " +
                     std::to_string(bytes) + " that its sender says");
  }
  return map_whole(std::move(fd), size, access);
}

Result<SharedRegion> SharedRegion::map_whole(FileDescriptor fd, size_t size, Access access) {
  if (size == 0) return data_loss("a shared region cannot have 0 bytes");
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals) {
    return data_loss("what came as a shared region is none: its size is not sealed");
  }
  PERCHERON_ASSIGN_OR_RETURN(std::byte* const data, map_memory(fd, size, access));
  return SharedRegion(std::move(fd), data, size, access);
}

SharedRegion::SharedRegion(SharedRegion&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      backed_(std::exchange(other.backed_, 0)),
      access_(other.access_) {}

SharedRegion& SharedRegion::operator=(SharedRegion&& other) noexcept {
  if (this == &other) return *this;
  reset();
  fd_ = std::move(other.fd_);
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  backed_ = std::exchange(other.backed_, 0);
  access_ = other.access_;
  return *this;
}

std::span<std::byte> SharedRegion::writable_bytes() {
  PERCHERON_CHECK(access_ == Access::kReadWrite, "the region is mapped for reading");
  return {data_, size_};
}

Status SharedRegion::reserve(size_t offset, size_t bytes) {
  PERCHERON_CHECK(access_ == Access::kReadWrite && offset <= size_ && bytes <= size_ - offset,
                  "no writable part of the region");
  if (bytes == 0) return ok_status();
  if (offset + bytes <= backed_) return ok_status();
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return populate(fd_, data_, offset / page * page, offset + bytes);
}

void SharedRegion::note_written(size_t bytes) {
  PERCHERON_CHECK(bytes <= size_, "more bytes than the region has");
  backed_ = std::max(backed_, bytes);
}

Status SharedRegion::seal_for_others() {
  if (::fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0) return ok_status();
  return os_error("seal a shared region against writing by others", errno);
}

void SharedRegion::reset() {
  if (data_ != nullptr) ::munmap(std::exchange(data_, nullptr), size_);
  size_ = backed_ = 0;
  fd_.reset();
}

}  // namespace percheron
