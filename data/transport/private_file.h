#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace percheron {

/// Writes `text` to the new file `path` that only its owner may read and write (0600), and waits
/// until it is on disk. kFailedPrecondition when there is such a file; nothing is left after an
/// error. Straight to the operating system: FileSystem has no modes.
Status write_private_file(const std::string& path, std::string_view text);

}  // namespace percheron
