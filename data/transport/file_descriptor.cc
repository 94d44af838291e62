#include "data/transport/file_descriptor.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace percheron {
namespace {

StatusCode code_of(int error) {
  switch (error) {
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ENOBUFS:
    case ENOSPC: return StatusCode::kResourceExhausted;
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETUNREACH:
    case ENETDOWN:
    case EPIPE:
    case ETIMEDOUT:
    case EAGAIN: return StatusCode::kUnavailable;
    case EADDRINUSE:
    case EADDRNOTAVAIL:
    case EACCES:
    case EPERM:
    case EBUSY: return StatusCode::kFailedPrecondition;
    case EINVAL: return StatusCode::kInvalidArgument;
    default: return StatusCode::kInternal;
  }
}

}  // namespace

void FileDescriptor::reset() {
  // Not retried: Linux frees the descriptor even when close() is interrupted.
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

Result<FileDescriptor> FileDescriptor::duplicate() const {
  const int fd = ::fcntl(fd_, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return os_error("duplicate a file descriptor", errno);
  return FileDescriptor(fd);
}

Result<uint64_t> raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return os_error("ask for the limit of files", errno);
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return os_error("raise the limit of files", errno);
  return limit.rlim_cur;
}

Status os_error(std::string_view action, int error) {
  return Status(code_of(error),
                "cannot " + std::string(action) + ": " + std::generic_category().message(error));
}

}  // namespace percheron
