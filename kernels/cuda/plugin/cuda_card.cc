#include "kernels/cuda/plugin/cuda_card.h"

namespace percheron::cuda {
namespace {

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string words_of(const RuntimeError& error) { return error.text + " (" + error.name + ")"; }

}  // namespace

Status CudaCard::select() {
  return status(runtime_->set_device(id_.index), "making it the thread's device");
}

Status CudaCard::status(const RuntimeError& error, const std::string& what) {
  if (error.ok()) return ok_status();
  const std::lock_guard lock(mutex_);
  if (lost_by_.empty() && error.kind == RuntimeError::Kind::kLost) {
    lost_by_ = what + ": " + words_of(error);
  }
  if (!lost_by_.empty()) {
    return internal_error(
        to_string(id_) + " is lost to this process since its first failure, " + lost_by_ +
        "; start the same command again, it goes on from the last checkpoint (with "
        "CUDA_LAUNCH_BLOCKING=1 in the environment the failing operation itself is named)");
  }
  const std::string message = to_string(id_) + ": " + what + ": " + words_of(error);
  return error.kind == RuntimeError::Kind::kNoMemory ? resource_exhausted(message)
                                                     : internal_error(message);
}

std::string CudaCard::why_no_devices(const RuntimeError& error) {
  const int driver = runtime_->driver_version(), runtime = runtime_->runtime_version();
  if (driver == 0) return "no NVIDIA driver is installed here";
  if (driver < runtime) {
    return "the NVIDIA driver is for CUDA " + version_text(driver) +
           ", this build needs one for CUDA " + version_text(runtime);
  }
  return "CUDA finds no GPU" + (error.ok() ? std::string() : ": " + words_of(error));
}

Status CudaCard::check_exists() {
  int count = 0;
  const RuntimeError error = runtime_->device_count(&count);
  if (error.ok() && id_.index < count) return ok_status();
  return not_found("there is no device " + to_string(id_) + ": " +
                   (!error.ok() || count == 0
                        ? why_no_devices(error)
                        : "the last one is cuda:" + std::to_string(count - 1)));
}

}  // namespace percheron::cuda
