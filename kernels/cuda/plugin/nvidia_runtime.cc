#include "kernels/cuda/plugin/nvidia_runtime.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/plugin/probe.h"

namespace percheron::cuda {
namespace {

RuntimeError::Kind kind_of(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return RuntimeError::Kind::kNone;
    case cudaErrorMemoryAllocation: return RuntimeError::Kind::kNoMemory;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary: return RuntimeError::Kind::kNoDevice;
    // "The process must be terminated and relaunched", says the runtime's manual of each of these.
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
    case cudaErrorContextIsDestroyed: return RuntimeError::Kind::kLost;
    default: return RuntimeError::Kind::kOther;
  }
}

RuntimeError to_error(cudaError_t error) {
  if (error == cudaSuccess) return {};
  // A failure that is told here must not be found again by the next launch.
  (void)cudaGetLastError();
  return {kind_of(error), cudaGetErrorName(error), cudaGetErrorString(error)};
}

cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t event_of(void* event) { return static_cast<cudaEvent_t>(event); }

class NvidiaRuntime final : public Runtime {
 public:
  RuntimeError device_count(int* count) override { return to_error(cudaGetDeviceCount(count)); }
  int driver_version() override {
    int version = 0;
    return cudaDriverGetVersion(&version) == cudaSuccess ? version : 0;
  }
  int runtime_version() override {
    int version = 0;
    return cudaRuntimeGetVersion(&version) == cudaSuccess ? version : CUDART_VERSION;
  }
  RuntimeError set_device(int index) override { return to_error(cudaSetDevice(index)); }
  RuntimeError card(int index, Card* card) override {
    cudaDeviceProp properties;
    const cudaError_t error = cudaGetDeviceProperties(&properties, index);
    if (error == cudaSuccess) *card = {properties.name, properties.major, properties.minor};
    return to_error(error);
  }
  RuntimeError memory(uint64_t* free_bytes, uint64_t* total_bytes) override {
    size_t free = 0, total = 0;
    const cudaError_t error = cudaMemGetInfo(&free, &total);
    *free_bytes = free;
    *total_bytes = total;
    return to_error(error);
  }
  RuntimeError find_kernels() override { return to_error(find_probe_kernel()); }

  RuntimeError allocate(void** data, size_t bytes) override {
    return to_error(cudaMalloc(data, bytes));
  }
  RuntimeError free(void* data) override { return to_error(cudaFree(data)); }
  RuntimeError allocate_host(void** data, size_t bytes) override {
    return to_error(cudaHostAlloc(data, bytes, cudaHostAllocPortable));
  }
  RuntimeError free_host(void* data) override { return to_error(cudaFreeHost(data)); }

  RuntimeError create_stream(void** stream) override {
    cudaStream_t created = nullptr;
    const cudaError_t error = cudaStreamCreateWithFlags(&created, cudaStreamNonBlocking);
    *stream = created;
    return to_error(error);
  }
  RuntimeError destroy_stream(void* stream) override {
    return to_error(cudaStreamDestroy(stream_of(stream)));
  }
  RuntimeError synchronize_stream(void* stream) override {
    return to_error(cudaStreamSynchronize(stream_of(stream)));
  }
  RuntimeError copy(void* stream, void* destination, const void* source, size_t bytes) override {
    // Which side is the device's, the driver knows from the addresses.
    return to_error(
        cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault, stream_of(stream)));
  }

  RuntimeError create_event(void** event) override {
    return create_event(event, cudaEventDisableTiming | cudaEventBlockingSync);
  }
  RuntimeError create_timed_event(void** event) override {
    return create_event(event, cudaEventDefault);
  }
  RuntimeError destroy_event(void* event) override {
    return to_error(cudaEventDestroy(event_of(event)));
  }
  RuntimeError record_event(void* event, void* stream) override {
    return to_error(cudaEventRecord(event_of(event), stream_of(stream)));
  }
  RuntimeError stream_wait_event(void* stream, void* event) override {
    return to_error(cudaStreamWaitEvent(stream_of(stream), event_of(event), 0));
  }
  RuntimeError synchronize_event(void* event) override {
    return to_error(cudaEventSynchronize(event_of(event)));
  }
  RuntimeError elapsed(float* ms, void* begin, void* end) override {
    return to_error(cudaEventElapsedTime(ms, event_of(begin), event_of(end)));
  }

  RuntimeError begin_capture(void* stream) override {
    return to_error(cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeThreadLocal));
  }
  RuntimeError end_capture(void* stream, void** graph) override {
    cudaGraph_t captured = nullptr;
    const cudaError_t error = cudaStreamEndCapture(stream_of(stream), &captured);
    *graph = captured;
    return to_error(error);
  }
  RuntimeError destroy_graph(void* graph) override {
    return to_error(cudaGraphDestroy(static_cast<cudaGraph_t>(graph)));
  }
  RuntimeError instantiate_graph(void** executable, void* graph) override {
    cudaGraphExec_t made = nullptr;
    const cudaError_t error = cudaGraphInstantiate(&made, static_cast<cudaGraph_t>(graph), 0);
    *executable = made;
    return to_error(error);
  }
  RuntimeError launch_graph(void* executable, void* stream) override {
    return to_error(cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable), stream_of(stream)));
  }
  RuntimeError destroy_executable(void* executable) override {
    return to_error(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable)));
  }

 private:
  static RuntimeError create_event(void** event, unsigned flags) {
    cudaEvent_t created = nullptr;
    const cudaError_t error = cudaEventCreateWithFlags(&created, flags);
    *event = created;
    return to_error(error);
  }
};

}  // namespace

std::unique_ptr<Runtime> make_nvidia_runtime() { return std::make_unique<NvidiaRuntime>(); }

}  // namespace percheron::cuda
