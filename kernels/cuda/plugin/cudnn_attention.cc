// libpercheron_cudnn.so: causal attention by cuDNN, through NVIDIA's header-only frontend, which is
// confined to this file: it takes most of a minute to compile.

#include <cuda_runtime_api.h>
#include <cudnn_frontend.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "kernels/cuda/attention_library.h"
#include "kernels/cuda/plugin/cuda_status.h"

namespace percheron::cuda {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Graph;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

/// The shape whose kernel all shapes of one model take, so that a row's bits do not depend on how
/// many documents a pack has or on how long they are.
constexpr int64_t kUsualDocuments = 8, kUsualLongest = 2048;
/// More than a run has classes of shapes.
constexpr size_t kPlansMax = 2048;

/// Names of a graph's tensors, by which operands are handed over.
enum Uid : int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kQOffsets,
  kKOffsets,
  kVOffsets,
  kOutOffsets,
  kQueryLengths,
  kKeyLengths,
};

Status fe_status(fe::error_t error, const char* what) {
  if (error.is_good()) return ok_status();
  std::string message = error.get_message();
  std::replace(message.begin(), message.end(), '\n', ' ');
  return failed_precondition(std::string(what) + ": " + message);
}

/// What the frontend throws ends here.
template <class F>
auto guarded(const char* what, F f) -> decltype(f()) {
  try {
    return f();
  } catch (const std::exception& error) {
    return internal_error(std::string(what) + ": " + error.what());
  }
}

Tensor numbers(Graph& graph, Uid uid, int64_t count) {
  return graph.tensor(fe::graph::Tensor_attributes()
                          .set_uid(uid)
                          .set_dim({count, 1, 1, 1})
                          .set_stride({1, 1, 1, 1})
                          .set_data_type(fe::DataType_t::INT32));
}

/// [documents, heads, longest, head_dim] as cuDNN counts them, in packed rows of `stride`.
fe::graph::Tensor_attributes rows(const PackedShape& s, Uid uid, int64_t heads, int64_t stride) {
  return fe::graph::Tensor_attributes()
      .set_uid(uid)
      .set_dim({s.documents, heads, s.longest, s.head_dim})
      .set_stride({s.longest * stride, s.head_dim, stride, 1});
}

void add_attention(Graph& graph, const PackedShape& s) {
  const auto packed = [&](Uid uid, Uid offsets, int64_t heads, int64_t stride) {
    return graph.tensor(
        rows(s, uid, heads, stride).set_ragged_offset(numbers(graph, offsets, s.documents + 1)));
  };
  const Tensor q = packed(kQ, kQOffsets, s.heads, s.q_stride);
  const Tensor k = packed(kK, kKOffsets, s.kv_heads, s.k_stride);
  const Tensor v = packed(kV, kVOffsets, s.kv_heads, s.v_stride);
  auto options = fe::graph::SDPA_attributes()
                     .set_name("causal_attention")
                     .set_generate_stats(false)
                     .set_attn_scale(s.scale)
                     .set_causal_mask(true)
                     .set_padding_mask(true)
                     .set_seq_len_q(numbers(graph, kQueryLengths, s.documents))
                     .set_seq_len_kv(numbers(graph, kKeyLengths, s.documents));
  const Tensor out = graph.sdpa(q, k, v, options)[0];
  const fe::graph::Tensor_attributes like = rows(s, kOut, s.heads, s.out_stride);
  out->set_output(true).set_uid(kOut).set_dim(like.get_dim()).set_stride(like.get_stride());
  out->set_ragged_offset(numbers(graph, kOutOffsets, s.documents + 1));
}

class CudnnAttention final : public AttentionLibrary {
 public:
  /// A null handle plans and does not run.
  CudnnAttention(std::shared_ptr<fe::DeviceProperties> properties, int sm_version,
                 cudnnHandle_t handle)
      : properties_(std::move(properties)), sm_version_(sm_version), handle_(handle) {}
  ~CudnnAttention() override {
    plans_.clear();
    if (handle_ != nullptr) (void)cudnnDestroy(handle_);  // Nothing is left to be told by it.
  }

  std::string name() const override {
    const size_t version = cudnnGetVersion();
    return "cuDNN " + std::to_string(version / 10000) + "." +
           std::to_string(version % 10000 / 100) + "." + std::to_string(version % 100);
  }

  Result<AttentionPlan> plan(const PackedShape& shape) override {
    const std::lock_guard lock(mutex_);
    PERCHERON_ASSIGN_OR_RETURN(const Planned* planned, planned_for(shape));
    return planned->plan;
  }

  Status run(Queue& queue, const PackedShape& shape, const PackedOperands& x) override {
    if (handle_ == nullptr) return failed_precondition("this device is only planned for");
    const std::lock_guard lock(mutex_);
    PERCHERON_ASSIGN_OR_RETURN(const Planned* planned, planned_for(shape));
    if (cudnnSetStream(handle_, static_cast<cudaStream_t>(queue.stream)) != CUDNN_STATUS_SUCCESS) {
      return internal_error("cudnnSetStream failed");
    }
    // cuDNN takes inputs as pointers to what may change, too.
    const auto input = [](const void* data) { return const_cast<void*>(data); };
    std::unordered_map<int64_t, void*> operands = {{kQ, input(x.q)},
                                                   {kK, input(x.k)},
                                                   {kV, input(x.v)},
                                                   {kOut, x.out},
                                                   {kQOffsets, input(x.q_offsets)},
                                                   {kKOffsets, input(x.k_offsets)},
                                                   {kVOffsets, input(x.v_offsets)},
                                                   {kOutOffsets, input(x.out_offsets)},
                                                   {kQueryLengths, input(x.lengths)},
                                                   {kKeyLengths, input(x.lengths)}};
    return guarded("attention by cuDNN", [&]() -> Status {
      return fe_status(planned->graph->execute(handle_, operands, x.workspace),
                       "attention by cuDNN");
    });
  }

 private:
  struct Planned {
    std::shared_ptr<Graph> graph;
    AttentionPlan plan;
  };
  /// What shapes of one model share.
  struct Family {
    std::shared_ptr<fe::KernelCache> kernels = std::make_shared<fe::KernelCache>();
    std::string kernel;  // the usual shape's; empty until it is planned
  };

  /// The mutex is held.
  Result<const Planned*> planned_for(const PackedShape& shape) {
    if (const auto known = plans_.find(shape); known != plans_.end()) return &known->second;
    if (plans_.size() >= kPlansMax) {
      return resource_exhausted("more than " + std::to_string(kPlansMax) + " shapes are planned");
    }
    PackedShape key = shape;
    key.documents = key.longest = 0;
    Family& family = families_[key];
    if (family.kernel.empty()) {
      PackedShape usual = shape;
      usual.documents = kUsualDocuments;
      usual.longest = kUsualLongest;
      PERCHERON_ASSIGN_OR_RETURN(const Planned planned, make(usual, family));
      family.kernel = planned.plan.kernel;
    }
    PERCHERON_ASSIGN_OR_RETURN(Planned planned, make(shape, family));
    return &plans_.emplace(shape, std::move(planned)).first->second;
  }

  /// A plan with the family's kernel, or, where it has none yet, with the first that cuDNN builds.
  Result<Planned> make(const PackedShape& shape, const Family& family) {
    return guarded("cuDNN", [&]() -> Result<Planned> {
      auto graph = std::make_shared<Graph>();
      graph->set_io_data_type(fe::DataType_t::BFLOAT16)
          .set_intermediate_data_type(fe::DataType_t::FLOAT)
          .set_compute_data_type(fe::DataType_t::FLOAT)
          .set_device_properties(properties_)
          .set_sm_version(sm_version_)
          .set_dynamic_shape_enabled(true)
          .set_kernel_cache(family.kernels);
      add_attention(*graph, shape);
      PERCHERON_RETURN_IF_ERROR(fe_status(graph->validate(), "validation"));
      PERCHERON_RETURN_IF_ERROR(fe_status(graph->build_operation_graph(), "operation graph"));
      PERCHERON_RETURN_IF_ERROR(
          fe_status(graph->create_execution_plans({fe::HeurMode_t::A}), "heuristics"));
      PERCHERON_RETURN_IF_ERROR(fe_status(graph->check_support(), "support"));
      Status last = failed_precondition("no engine runs " + family.kernel);
      for (int64_t i = 0; i < graph->get_execution_plan_count(); ++i) {
        std::string kernel;
        PERCHERON_RETURN_IF_ERROR(fe_status(graph->get_plan_name_at_index(i, kernel), "plan name"));
        if (!family.kernel.empty() && kernel != family.kernel) continue;
        last = fe_status(graph->build_plan_at_index(i), "plan");
        if (!last.ok()) continue;
        int64_t bytes = 0;
        PERCHERON_RETURN_IF_ERROR(
            fe_status(graph->get_workspace_size_plan_at_index(i, bytes), "workspace"));
        return Planned{graph, {.workspace_bytes = bytes, .kernel = kernel}};
      }
      return last;
    });
  }

  std::shared_ptr<fe::DeviceProperties> properties_;
  int sm_version_;
  cudnnHandle_t handle_;
  std::mutex mutex_;                        // for what follows, and the handle's stream
  std::map<PackedShape, Family> families_;  // by shape without documents
  std::map<PackedShape, Planned> plans_;
};

Result<std::unique_ptr<AttentionLibrary>> open_for(const PlannedDevice& device) {
  auto properties = std::make_shared<fe::DeviceProperties>();
  const std::string text = device.properties_json;
  PERCHERON_RETURN_IF_ERROR(fe_status(
      properties->deserialize(std::vector<uint8_t>(text.begin(), text.end())), "properties"));
  return std::unique_ptr<AttentionLibrary>(
      std::make_unique<CudnnAttention>(std::move(properties), device.sm_version, nullptr));
}

Result<std::unique_ptr<AttentionLibrary>> open_current() {
  int device = 0, major = 0, minor = 0;
  PERCHERON_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&device), "cudaGetDevice"));
  PERCHERON_RETURN_IF_ERROR(cuda_status(
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "capability"));
  PERCHERON_RETURN_IF_ERROR(cuda_status(
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "capability"));
  auto properties = std::make_shared<fe::DeviceProperties>();
  PERCHERON_RETURN_IF_ERROR(
      fe_status(properties->set_device_id(device).build(), "cuDNN's device properties"));
  cudnnHandle_t handle = nullptr;
  if (const cudnnStatus_t status = cudnnCreate(&handle); status != CUDNN_STATUS_SUCCESS) {
    return internal_error(std::string("cudnnCreate: ") + cudnnGetErrorString(status));
  }
  return std::unique_ptr<AttentionLibrary>(
      std::make_unique<CudnnAttention>(std::move(properties), 10 * major + minor, handle));
}

}  // namespace
}  // namespace percheron::cuda

extern "C" {

__attribute__((visibility("default"))) int percheron_attention_library_abi() {
  return percheron::cuda::kAttentionLibraryAbi;
}

__attribute__((visibility("default"))) void percheron_attention_library_open(
    const percheron::cuda::PlannedDevice* device,
    percheron::Result<std::unique_ptr<percheron::cuda::AttentionLibrary>>* library) {
  using percheron::cuda::guarded;
  *library = guarded("cuDNN", [&] {
    return device == nullptr ? percheron::cuda::open_current() : percheron::cuda::open_for(*device);
  });
}

}  // extern "C"
