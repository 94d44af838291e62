// A libcuda.so.1 for machines without a driver: it takes every kernel that cuDNN has compiled and
// finds it again, which is as far as planning goes. Whatever else is asked of it has no device:
// those functions are generated from the names of CUDA's stub (CMakeLists.txt). Nothing runs.

namespace {

constexpr int kSuccess = 0;

/// Handles that nobody looks into.
int give(void** handle) {
  static int somewhere;
  *handle = &somewhere;
  return kSuccess;
}

}  // namespace

extern "C" {

int cuLibraryLoadData(void** library) { return give(library); }
int cuLibraryGetKernel(void** kernel) { return give(kernel); }
int cuLibraryGetModule(void** module) { return give(module); }
int cuKernelGetFunction(void** function) { return give(function); }
int cuModuleLoadData(void** module) { return give(module); }
int cuModuleLoadDataEx(void** module) { return give(module); }
int cuModuleGetFunction(void** function) { return give(function); }
int cuLibraryUnload() { return kSuccess; }
int cuModuleUnload() { return kSuccess; }

}  // extern "C"
