#pragma once

#include <memory>
#include <string>

#include "base/file_system.h"
#include "base/status.h"

namespace percheron {

/// Locks `directory`, which exists, by its file `.lock` for as long as the result lives.
/// kFailedPrecondition, naming `what` and the process that has it, when it is in use. Null, with a
/// warning, where the file system knows no locks.
Result<std::unique_ptr<FileLock>> lock_directory(FileSystem& files, const std::string& directory,
                                                 const std::string& what);

}  // namespace percheron
