#include "kernels/cuda/plugin/cuda_device.h"

#include <dlfcn.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/log.h"
#include "kernels/cuda/attention_library.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/kernel_stream.h"
#include "kernels/cuda/plugin/cublas_products.h"
#include "kernels/cuda/plugin/cuda_status.h"
#include "kernels/cuda/plugin/event_timer.h"

namespace percheron::cuda {
namespace {

class CudaMemory final : public Buffer::Owner {
 public:
  void release(void* data, size_t) override {
    // Fails only after an error of an earlier kernel, which the stream reports.
    (void)cudaFree(data);
  }
};

class CudaStream final : public KernelStream {
 public:
  explicit CudaStream(cudaStream_t stream) : KernelStream(stream), stream_(stream) {}
  ~CudaStream() override {
    if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);  // The last wait has told all errors.
  }
  cudaStream_t handle() const { return stream_; }

  Status wait_idle() override {
    collect_error();
    const Status done = cuda_status(cudaStreamSynchronize(stream_), "work on the GPU failed");
    if (!done.ok()) fail(done);
    return take_error();
  }

 private:
  cudaStream_t stream_;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(DeviceInfo info, std::unique_ptr<MatrixProducts> products,
             CausalAttention::Parts causal_attention)
      : info_(std::move(info)), ops_(std::move(products), std::move(causal_attention)) {}

  const DeviceInfo& info() const override { return info_; }
  const Ops& ops() const override { return ops_; }

  std::unique_ptr<Stream> make_stream() override {
    cudaStream_t stream = nullptr;
    Status status = select();
    if (status.ok()) {
      status = cuda_status(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                           "no stream on " + to_string(info_.id));
    }
    auto result = std::make_unique<CudaStream>(stream);
    if (!status.ok()) result->fail(status);
    return result;
  }

  Result<Buffer> allocate(size_t bytes) override {
    PERCHERON_RETURN_IF_ERROR(select());
    void* data = nullptr;
    PERCHERON_RETURN_IF_ERROR(
        cuda_status(cudaMalloc(&data, std::max<size_t>(bytes, 1)),
                    to_string(info_.id) + " has no " + std::to_string(bytes) + " bytes of memory"));
    return Buffer(data, bytes, memory_);
  }

  void bind_thread() override { (void)select(); }  // Whatever fails here fails again in allocate().

  void copy_bytes(Stream& stream, void* destination, const void* source, size_t bytes) override {
    if (bytes == 0) return;
    // Which side is the device's, the driver knows from the addresses.
    const cudaError_t error = cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault,
                                              static_cast<CudaStream&>(stream).handle());
    const Status status = cuda_status(error, "a copy of " + std::to_string(bytes) + " bytes");
    if (!status.ok()) stream.fail(status);
  }

 private:
  Status select() const {
    return cuda_status(cudaSetDevice(info_.id.index), "cudaSetDevice for " + to_string(info_.id));
  }

  DeviceInfo info_;
  CudaOps ops_;
  std::shared_ptr<CudaMemory> memory_ = std::make_shared<CudaMemory>();
};

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

/// Why there are no devices at all.
std::string no_devices(cudaError_t error) {
  int driver = 0, runtime = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
  if (cudaRuntimeGetVersion(&runtime) != cudaSuccess) runtime = CUDART_VERSION;
  if (driver == 0) return "no NVIDIA driver is installed here";
  if (driver < runtime) {
    return "the NVIDIA driver is for CUDA " + version_text(driver) +
           ", this build needs one for CUDA " + version_text(runtime);
  }
  return cuda_status(error, "CUDA finds no GPU").message();
}

}  // namespace

Status check_cuda_device(DeviceId id) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  std::string why;
  if (error != cudaSuccess || count == 0) {
    why = no_devices(error == cudaSuccess ? cudaErrorNoDevice : error);
  } else if (id.index >= count) {
    why = "the last one is cuda:" + std::to_string(count - 1);
  }
  if (why.empty()) return ok_status();
  return not_found("there is no device " + to_string(id) + ": " + why);
}

namespace {

/// libpercheron_cudnn.so beside the library that this code is in.
std::string attention_library_path() {
  Dl_info info{};
  const auto here = reinterpret_cast<void*>(&attention_library_path);
  const std::string path =
      dladdr(here, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
  return path.substr(0, path.rfind('/') + 1) + "libpercheron_cudnn.so";
}

CausalAttention::Parts causal_attention(DeviceId id, AttentionKernel wanted) {
  return {.wanted = wanted,
          .open_library = [] { return load_attention_library(attention_library_path()); },
          .timer = std::make_unique<EventTimer>(),
          .tell = [id](const std::string& line) { log_info("{}: {}", to_string(id), line); }};
}

}  // namespace

Result<std::unique_ptr<Device>> make_cuda_device(DeviceId id, const DeviceOptions& options) {
  PERCHERON_RETURN_IF_ERROR(check_cuda_device(id));
  const std::string name = to_string(id);
  PERCHERON_RETURN_IF_ERROR(cuda_status(cudaSetDevice(id.index), name));
  cudaDeviceProp properties;
  PERCHERON_RETURN_IF_ERROR(cuda_status(cudaGetDeviceProperties(&properties, id.index), name));
  const std::string capability =
      std::to_string(properties.major) + "." + std::to_string(properties.minor);
  if (find_kernels() != cudaSuccess) {
    return not_found(name + " is a " + properties.name + " of compute capability " + capability +
                     ", for which this build has no code: build it with "
                     "PERCHERON_CUDA_ARCHITECTURES=" +
                     std::to_string(properties.major * 10 + properties.minor) + "-real");
  }
  PERCHERON_ASSIGN_OR_RETURN(std::unique_ptr<MatrixProducts> products, make_cublas_products());
  DeviceInfo info;
  info.id = id;
  info.description = std::string(properties.name) + ", compute capability " + capability;
  info.threads = std::max(1, options.threads);
  info.native_bf16 = true;
  info.memory_bytes = properties.totalGlobalMem;
  return std::unique_ptr<Device>(std::make_unique<CudaDevice>(
      info, std::move(products), causal_attention(id, options.causal_attention)));
}

}  // namespace percheron::cuda
