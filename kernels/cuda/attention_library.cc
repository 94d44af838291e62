#include "kernels/cuda/attention_library.h"

#include <dlfcn.h>
#include <unistd.h>

namespace percheron::cuda {

Result<std::unique_ptr<AttentionLibrary>> load_attention_library(const std::string& path,
                                                                 const PlannedDevice* device) {
  if (access(path.c_str(), F_OK) != 0) {
    return not_found("this build has no cuDNN attention, which would be " + path);
  }
  // Never closed: the code of every object made from it lies there.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* message = dlerror();
    return not_found(
        "cuDNN can't be loaded: " + std::string(message == nullptr ? "no reason given" : message) +
        "; LD_LIBRARY_PATH may name the folder of cuDNN's libraries");
  }
  const auto abi = reinterpret_cast<AttentionLibraryAbi*>(dlsym(library, kAttentionLibraryAbiName));
  const auto open =
      reinterpret_cast<AttentionLibraryOpen*>(dlsym(library, kAttentionLibraryOpenName));
  if (abi == nullptr || open == nullptr || abi() != kAttentionLibraryAbi) {
    return not_found(path + " is of another build of percheron");
  }
  Result<std::unique_ptr<AttentionLibrary>> result = internal_error("no answer from " + path);
  open(device, &result);
  return result;
}

}  // namespace percheron::cuda
