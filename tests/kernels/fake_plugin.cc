// Stands in for libpercheron_cuda.so in plugin_loader_test: of another build, or without devices.

#include "kernels/cuda/plugin.h"

#ifdef FAKE_UNDEFINED_SYMBOL
extern "C" int percheron_defined_nowhere();
#else
extern "C" int percheron_defined_nowhere() { return 0; }
#endif

extern "C" int percheron_cuda_abi() { return FAKE_ABI + percheron_defined_nowhere(); }

extern "C" void percheron_cuda_open(percheron::DeviceId id, const percheron::DeviceOptions&,
                                    percheron::Result<std::unique_ptr<percheron::Device>>* device) {
  *device =
      percheron::not_found("there is no device " + to_string(id) + ": the last one is cuda:1");
}

extern "C" void percheron_cuda_connect(
    std::span<const percheron::DeviceId>, const percheron::DeviceCollectiveOptions&,
    percheron::Result<percheron::DeviceCollectives>* collectives) {
  *collectives = percheron::not_found("libnccl.so.2 can't be loaded");
}
