#pragma once

#include <string>

#include "base/status.h"
#include "data/transport/connect.h"

namespace percheron {

/// The body of http://ADDRESS/PATH, by one GET without encryption. kUnavailable names the address
/// when there is no answer in time or one that is not 200.
Result<std::string> http_get(const NodeAddress& address, const std::string& path,
                             Deadline deadline);

}  // namespace percheron
