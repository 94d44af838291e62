#include "tools/build_info.h"

#include "tools/commit.h"

namespace percheron {

BuildInfo build_info() { return {PERCHERON_VERSION, PERCHERON_COMMIT, PERCHERON_CUDA_TOOLKIT}; }

}  // namespace percheron
