#include "kernels/cuda/plugin_loader.h"

#include <dlfcn.h>
#include <unistd.h>

#include <climits>

#include "kernels/cuda/plugin.h"

namespace percheron {
namespace {

constexpr const char* kPluginFile = "libpercheron_cuda.so";

Status no_device(DeviceId id, const std::string& why) {
  return not_found("there is no device " + to_string(id) + ": " + why);
}

std::string linker_message() {
  const char* message = dlerror();
  return message == nullptr ? "no reason given" : message;
}

}  // namespace

std::string cuda_plugin_path() {
  char program[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", program, sizeof program);
  if (length <= 0) return kPluginFile;
  const std::string path(program, static_cast<size_t>(length));
  return path.substr(0, path.rfind('/') + 1) + kPluginFile;
}

Result<std::unique_ptr<Device>> open_cuda_device(DeviceId id, const DeviceOptions& options,
                                                 const std::string& path) {
  if (access(path.c_str(), F_OK) != 0) {
    return no_device(id, "this build has no CUDA backend, which would be " + path);
  }
  // Never closed: the code of every object made from it lies there.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return no_device(id, "the CUDA backend can't be loaded: " + linker_message() +
                             "; LD_LIBRARY_PATH may name the folder of CUDA's libraries");
  }
  const auto abi = reinterpret_cast<cuda::PluginAbi*>(dlsym(library, cuda::kPluginAbiName));
  const auto open = reinterpret_cast<cuda::PluginOpen*>(dlsym(library, cuda::kPluginOpenName));
  if (abi == nullptr || open == nullptr) {
    return no_device(id, path + " is no CUDA backend of percheron");
  }
  if (const int version = abi(); version != cuda::kPluginAbi) {
    return no_device(id, path + " is of another build of percheron: its interface is number " +
                             std::to_string(version) + ", this program's is " +
                             std::to_string(cuda::kPluginAbi));
  }
  Result<std::unique_ptr<Device>> device = internal_error("the CUDA backend gave no answer");
  open(id, options, &device);
  return device;
}

}  // namespace percheron
