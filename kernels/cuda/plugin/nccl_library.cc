#include "kernels/cuda/plugin/nccl_library.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>

#include <cstring>
#include <string>

#include "kernels/cuda/plugin/cuda_status.h"

namespace percheron::cuda {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";

static_assert(sizeof(NcclId) == sizeof(ncclUniqueId));
static_assert(static_cast<int>(NcclCode::kSuccess) == ncclSuccess);
static_assert(static_cast<int>(NcclCode::kInProgress) == ncclInProgress);

/// The library's functions, with the types of its header.
struct Functions {
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclCommAbort) comm_abort = nullptr;
  decltype(&ncclGetErrorString) get_error_string = nullptr;
  decltype(&ncclGetLastError) get_last_error = nullptr;
};

NcclCode code_of(ncclResult_t result) { return static_cast<NcclCode>(result); }
ncclComm_t comm_of(NcclComm comm) { return static_cast<ncclComm_t>(comm); }

class NcclLibrary final : public NcclCalls {
 public:
  explicit NcclLibrary(const Functions& functions) : nccl_(functions) {}

  NcclCode get_unique_id(NcclId* id) override {
    ncclUniqueId made;
    const ncclResult_t result = nccl_.get_unique_id(&made);
    std::memcpy(id->data(), &made, id->size());
    return code_of(result);
  }

  NcclCode comm_init_rank_config(NcclComm* comm, DeviceId device, int size, const NcclId& id,
                                 int rank) override {
    if (cudaSetDevice(device.index) != cudaSuccess) return code_of(ncclUnhandledCudaError);
    ncclUniqueId known;
    std::memcpy(&known, id.data(), id.size());
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t made = nullptr;
    const ncclResult_t result = nccl_.comm_init_rank_config(&made, size, known, rank, &config);
    *comm = made;
    return code_of(result);
  }

  NcclCode comm_get_async_error(NcclComm comm, NcclCode* error) override {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t result = nccl_.comm_get_async_error(comm_of(comm), &state);
    *error = code_of(state);
    return code_of(result);
  }

  NcclCode group_start() override { return code_of(nccl_.group_start()); }
  NcclCode group_end() override { return code_of(nccl_.group_end()); }

  NcclCode all_reduce(const void* x, void* sum, size_t count, NcclComm comm,
                      void* stream) override {
    return code_of(nccl_.all_reduce(x, sum, count, ncclFloat32, ncclSum, comm_of(comm),
                                    static_cast<cudaStream_t>(stream)));
  }

  NcclCode comm_abort(NcclComm comm) override { return code_of(nccl_.comm_abort(comm_of(comm))); }

  std::string error_text(NcclCode code, NcclComm comm) override {
    std::string text = nccl_.get_error_string(static_cast<ncclResult_t>(code));
    const char* last = nccl_.get_last_error(comm_of(comm));
    if (last != nullptr && *last != 0) text += std::string(" (") + last + ")";
    // A message is one line.
    for (char& c : text) c = c == '\n' ? ' ' : c;
    return text;
  }

  Result<StreamState> stream_state(void* stream) override {
    const cudaError_t state = cudaStreamQuery(static_cast<cudaStream_t>(stream));
    if (state == cudaErrorNotReady) {
      (void)cudaGetLastError();  // The next launch would take it for its own.
      return StreamState::kBusy;
    }
    PERCHERON_RETURN_IF_ERROR(cuda_status(state, "work on the GPU failed"));
    return StreamState::kIdle;
  }

 private:
  const Functions nccl_;
};

template <class Function>
Status find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function != nullptr) return ok_status();
  return not_found(std::string(kLibrary) + " has no " + name +
                   ": install a NCCL of version 2.18 or later");
}

}  // namespace

Result<std::shared_ptr<NcclCalls>> open_nccl() {
  // Never closed: its threads and the code of its communicators lie there.
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return not_found(std::string("NCCL, by which GPUs sum with each other, can't be loaded: ") +
                     (why == nullptr ? kLibrary : why) +
                     "; install it, or let LD_LIBRARY_PATH name its folder");
  }
  Functions f;
  PERCHERON_RETURN_IF_ERROR(find(library, "ncclGetUniqueId", f.get_unique_id));
  PERCHERON_RETURN_IF_ERROR(find(library, "ncclCommInitRankConfig", f.comm_init_rank_config));
  PERCHERON_RETURN_IF_ERROR(find(library, "ncclCommGetAsyncError", f.comm_get_async_error));
  PERCHERON_RETURN_IF_ERROR(find(library, "ncclGroupStart", f.group_start));
  PERCHERON_RETURN_IF_ERROR(find(library, "ncclGroupEnd", f.group_end));
  PERCHERON_RETURN_IF_ERROR(find(library, "ncclAllReduce", f.all_reduce));
  PERCHERON_RETURN_IF_ERROR(find(library, "ncclCommAbort", f.comm_abort));
  PERCHERON_RETURN_IF_ERROR(find(library, "ncclGetErrorString", f.get_error_string));
  PERCHERON_RETURN_IF_ERROR(find(library, "ncclGetLastError", f.get_last_error));
  return std::shared_ptr<NcclCalls>(std::make_shared<NcclLibrary>(f));
}

}  // namespace percheron::cuda
