#include "data/directory_lock.h"

#include "base/log.h"

namespace percheron {

Result<std::unique_ptr<FileLock>> lock_directory(FileSystem& files, const std::string& directory,
                                                 const std::string& what) {
  Result<std::unique_ptr<FileLock>> lock = files.lock(join_path(directory, ".lock"));
  if (lock.ok()) return lock;
  switch (lock.status().code()) {
    case StatusCode::kUnavailable:
      return failed_precondition(what + " " + directory + " is in use: " + lock.status().message() +
                                 "; wait for it, stop it, or give another directory");
    case StatusCode::kInternal:
      log_warning("{} {} is not protected from a second run: {}", what, directory,
                  lock.status().message());
      return std::unique_ptr<FileLock>();
    default: return lock.status().with_context(what);
  }
}

}  // namespace percheron
