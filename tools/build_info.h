#pragma once

#include "actors/run_metrics.h"

namespace percheron {

/// Version, commit ("unknown" where it was not built from a checkout) and CUDA toolkit ("none"
/// without) of this program.
BuildInfo build_info();

}  // namespace percheron
