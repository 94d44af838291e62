#pragma once

#include <cstdint>
#include <string>

namespace percheron::cuda {

/// A stream as kernels are put into it, by launch() of cuda.cuh.
struct Queue {
  void* stream = nullptr;  // a cudaStream_t, or the emulator's WorkQueue; null = only planned
  uint64_t launches = 0;   // of kernels and products, copies and graphs
  std::string error;       // the first of its launches; the stream's wait_idle() takes it
};

}  // namespace percheron::cuda
