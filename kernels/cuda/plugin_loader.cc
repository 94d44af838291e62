#include "kernels/cuda/plugin_loader.h"

#include <dlfcn.h>
#include <unistd.h>

#include <climits>
#include <string_view>

#include "kernels/cuda/plugin.h"

namespace percheron {
namespace {

constexpr const char* kPluginFile = "libpercheron_cuda.so";
// Of an installed program, below its prefix.
constexpr std::string_view kPrograms = "/bin/", kPlugins = "/lib/percheron/";

Status no_device(DeviceId id, const std::string& why) {
  return not_found("there is no device " + to_string(id) + ": " + why);
}

std::string linker_message() {
  const char* message = dlerror();
  return message == nullptr ? "no reason given" : message;
}

/// What a plug-in of this build exports.
struct Backend {
  cuda::PluginOpen* open;
  cuda::PluginConnect* connect;
};

/// kNotFound says why the plug-in at `path` is of no use.
Result<Backend> open_backend(const std::string& path) {
  if (access(path.c_str(), F_OK) != 0) {
    return not_found("this build has no CUDA backend, which would be " + path);
  }
  // Never closed: the code of every object made from it lies there.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return not_found("the CUDA backend can't be loaded: " + linker_message() +
                     "; LD_LIBRARY_PATH may name the folder of CUDA's libraries");
  }
  const auto abi = reinterpret_cast<cuda::PluginAbi*>(dlsym(library, cuda::kPluginAbiName));
  if (abi == nullptr) return not_found(path + " is no CUDA backend of percheron");
  if (const int version = abi(); version != cuda::kPluginAbi) {
    return not_found(path + " is of another build of percheron: its interface is number " +
                     std::to_string(version) + ", this program's is " +
                     std::to_string(cuda::kPluginAbi));
  }
  const Backend backend = {
      reinterpret_cast<cuda::PluginOpen*>(dlsym(library, cuda::kPluginOpenName)),
      reinterpret_cast<cuda::PluginConnect*>(dlsym(library, cuda::kPluginConnectName))};
  if (backend.open == nullptr || backend.connect == nullptr) {
    return not_found(path + " is no CUDA backend of percheron");
  }
  return backend;
}

}  // namespace

std::string cuda_plugin_path() {
  char program[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", program, sizeof program);
  if (length <= 0) return kPluginFile;
  const std::string path(program, static_cast<size_t>(length));
  const std::string directory = path.substr(0, path.rfind('/') + 1);
  if (directory.ends_with(kPrograms)) {
    const std::string plugins =
        directory.substr(0, directory.size() - kPrograms.size()) + std::string(kPlugins);
    if (access(plugins.c_str(), F_OK) == 0) return plugins + kPluginFile;
  }
  return directory + kPluginFile;
}

Result<std::unique_ptr<Device>> open_cuda_device(DeviceId id, const DeviceOptions& options,
                                                 const std::string& path) {
  const Result<Backend> backend = open_backend(path);
  if (!backend.ok()) return no_device(id, backend.status().message());
  Result<std::unique_ptr<Device>> device = internal_error("the CUDA backend gave no answer");
  backend->open(id, options, &device);
  return device;
}

Result<DeviceCollectives> open_cuda_collectives(std::span<const DeviceId> devices,
                                                const DeviceCollectiveOptions& options,
                                                const std::string& path) {
  const Result<Backend> backend = open_backend(path);
  if (!backend.ok()) return no_device(devices.front(), backend.status().message());
  Result<DeviceCollectives> collectives = internal_error("the CUDA backend gave no answer");
  backend->connect(devices, options, &collectives);
  return collectives;
}

}  // namespace percheron
