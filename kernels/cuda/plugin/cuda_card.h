#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "base/status.h"
#include "kernels/cuda/plugin/cuda_runtime.h"
#include "kernels/device.h"

namespace percheron::cuda {

/// One card of a runtime, and what became of it: the words for every error of its calls. Any
/// thread.
class CudaCard {
 public:
  CudaCard(DeviceId id, std::unique_ptr<Runtime> runtime) : id_(id), runtime_(std::move(runtime)) {}

  DeviceId id() const { return id_; }
  Runtime& runtime() { return *runtime_; }
  /// Makes the card the calling thread's.
  Status select();
  /// Ok, or what `error` says about `what`: kResourceExhausted for memory, else kInternal. Once the
  /// card is lost to this process, every error names what failed first and says to start again.
  Status status(const RuntimeError& error, const std::string& what);
  /// kNotFound says why the card is not there.
  Status check_exists();

 private:
  std::string why_no_devices(const RuntimeError& error);

  const DeviceId id_;
  const std::unique_ptr<Runtime> runtime_;
  std::mutex mutex_;
  std::string lost_by_;  // guarded by mutex_; what failed first, empty while the card works
};

}  // namespace percheron::cuda
