#include "data/transport/private_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "data/transport/file_descriptor.h"

namespace percheron {
namespace {

Status write_and_sync(const FileDescriptor& file, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t count = ::write(file.get(), text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return os_error("write to " + path, errno);
    text.remove_prefix(static_cast<size_t>(count));
  }
  return ::fsync(file.get()) == 0 ? ok_status() : os_error("sync " + path, errno);
}

}  // namespace

Status write_private_file(const std::string& path, std::string_view text) {
  const FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.valid()) {
    if (errno == EEXIST) return failed_precondition(path + " is there already");
    return os_error("create " + path, errno);
  }
  const Status status = write_and_sync(file, text, path);
  if (!status.ok()) ::unlink(path.c_str());
  return status;
}

}  // namespace percheron
