#include "kernels/planning_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <string>

#include "kernels/immediate_stream.h"
#include "kernels/ops.h"

#ifdef PERCHERON_EMULATOR
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/host_attention.h"
#include "kernels/cuda/host_products.h"
#include "kernels/cuda/kernel_stream.h"
#endif

namespace percheron {
namespace {

struct PlannedMatrix final : PackedMatrix {
  DType dtype;
  Buffer buffer;
};

class PlanningOps final : public Ops {
 public:
  void copy(Context&, ConstTensorView, TensorView) const override {}
  void fill_zero(Context&, TensorView) const override {}
  void add(Context&, ConstTensorView, TensorView) const override {}
  void gather_rows(Context&, ConstTensorView, ConstTensorView, TensorView) const override {}
  void scatter_add_rows(Context&, ConstTensorView, ConstTensorView, TensorView) const override {}
  std::unique_ptr<PackedMatrix> make_packed(Context& context, int64_t out_features,
                                            int64_t in_features, DType dtype,
                                            MatrixUse) const override {
    auto packed = std::make_unique<PlannedMatrix>();
    packed->dtype = dtype;
    packed->out_features = out_features;
    packed->in_features = in_features;
    auto buffer = context.device.allocate(static_cast<size_t>(out_features * in_features) *
                                          dtype_bytes(dtype));
    if (buffer.ok()) {
      packed->buffer = std::move(*buffer);
    } else {
      context.stream.fail(buffer.status());
    }
    return packed;
  }
  void pack(Context&, ConstTensorView, PackedMatrix&) const override {}
  void quantize_rows(Context&, ConstTensorView, int64_t, TensorView, TensorView) const override {}
  void pack_quantized(Context& context, ConstTensorView codes, ConstTensorView,
                      PackedMatrix& packed) const override {
    // A CPU has the whole matrix in scratch, in its dtype, before it packs it.
    const Arena::Scope scope(context.arena);
    context.arena.take(static_cast<PlannedMatrix&>(packed).dtype, {codes.dim(0), codes.dim(1)});
  }
  void linear(Context&, ConstTensorView, const PackedMatrix&, ConstTensorView, Write,
              TensorView) const override {}
  void linear_backward_input(Context&, ConstTensorView, const PackedMatrix&, Write,
                             TensorView) const override {}
  void linear_backward_weight(Context&, ConstTensorView, ConstTensorView,
                              TensorView) const override {}
  void matmul(Context&, float, ConstTensorView, Transpose, ConstTensorView, Transpose, float,
              TensorView) const override {}
  void rms_norm(Context&, ConstTensorView, ConstTensorView, float, TensorView,
                TensorView) const override {}
  void rms_norm_backward(Context&, ConstTensorView, ConstTensorView, ConstTensorView,
                         ConstTensorView, Write, TensorView, TensorView) const override {}
  void rotary(Context&, TensorView, ConstTensorView, ConstTensorView, ConstTensorView,
              RotaryDirection) const override {}
  void swiglu(Context&, ConstTensorView, TensorView) const override {}
  void swiglu_backward(Context&, ConstTensorView, ConstTensorView, TensorView) const override {}
  void attention(Context&, ConstTensorView, ConstTensorView, ConstTensorView, ConstTensorView,
                 float, TensorView, TensorView) const override {}
  void attention_backward(Context&, ConstTensorView, ConstTensorView, ConstTensorView,
                          ConstTensorView, ConstTensorView, ConstTensorView, ConstTensorView, float,
                          TensorView, TensorView, TensorView) const override {}
  void cross_entropy(Context&, TensorView, ConstTensorView, ConstTensorView, Gradient, TensorView,
                     TensorView) const override {}
  void teacher_loss(Context&, TeacherLoss, TensorView, ConstTensorView, ConstTensorView, Gradient,
                    TensorView, TensorView, TensorView) const override {}
  void argmax(Context&, ConstTensorView, TensorView) const override {}
  void squared_norm(Context&, ConstTensorView, TensorView) const override {}
  void clip_scale(Context&, ConstTensorView, double, double, TensorView) const override {}
  void adamw(Context&, const AdamWSettings&, ConstTensorView, ConstTensorView, TensorView,
             TensorView, TensorView) const override {}
  void axpby(Context&, float, ConstTensorView, float, TensorView) const override {}
  void scale_by(Context&, ConstTensorView, TensorView) const override {}
};

/// Counts what is alive; shared with the buffers, which may outlive the device's last use.
class AddressSpace final : public Buffer::Owner {
 public:
  /// `protection`: what the process may do with it, as mmap() takes it.
  explicit AddressSpace(int protection) : protection_(protection) {}

  Result<void*> reserve(size_t bytes) {
    void* data = mmap(nullptr, std::max<size_t>(bytes, 1), protection_,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) {
      return resource_exhausted("no address space for " + std::to_string(bytes) +
                                " planned bytes; raise the limit of virtual memory (ulimit -v)");
    }
    in_use_ += bytes;
    peak_ = std::max(peak_, in_use_);
    return data;
  }
  void release(void* data, size_t bytes) override {
    munmap(data, std::max<size_t>(bytes, 1));
    in_use_ -= bytes;
  }
  size_t peak() const { return peak_; }

 private:
  const int protection_;
  size_t in_use_ = 0, peak_ = 0;
};

#ifdef PERCHERON_EMULATOR
/// A stream whose kernels and products are only planned.
class PlannedKernels final : public cuda::KernelStream {
 public:
  PlannedKernels() : KernelStream(nullptr) {}
  Status wait_idle() override {
    collect_error();
    return take_error();
  }
  void record(Event&) override {}
  void wait_for(const Event&) override {}
};
#endif

std::unique_ptr<Ops> planning_ops(const DeviceOptions& options) {
#ifdef PERCHERON_EMULATOR
  // The operations of CUDA themselves, for the scratch memory that they take.
  if (options.planned == DeviceKind::kCuda) {
    const auto open = []() -> Result<std::unique_ptr<cuda::AttentionLibrary>> {
      return std::unique_ptr<cuda::AttentionLibrary>(std::make_unique<cuda::HostAttention>());
    };
    // Nothing can be measured: where the library might run, it is planned for.
    const bool own = options.causal_attention == AttentionKernel::kOwn;
    return std::make_unique<cuda::CudaOps>(
        std::make_unique<cuda::HostProducts>(),
        cuda::CausalAttention::Parts{own ? AttentionKernel::kOwn : AttentionKernel::kCudnn, open,
                                     nullptr, [](const std::string&) {}});
  }
#endif
  (void)options;
  return std::make_unique<PlanningOps>();
}

std::unique_ptr<Stream> planning_stream(DeviceKind planned) {
#ifdef PERCHERON_EMULATOR
  if (planned == DeviceKind::kCuda) return std::make_unique<PlannedKernels>();
#endif
  (void)planned;
  return std::make_unique<ImmediateStream>();
}

class PlanningDevice final : public Device {
 public:
  PlanningDevice(DeviceId id, const DeviceOptions& options)
      : planned_(options.planned), ops_(planning_ops(options)) {
    info_.id = id;
    info_.description = "planning: counts memory, computes nothing";
    info_.threads = std::max(1, options.threads);
    info_.native_bf16 = info_.graphs = planned_ == DeviceKind::kCuda;
    info_.immediate = planned_ == DeviceKind::kCpu;
  }
  const DeviceInfo& info() const override { return info_; }
  const Ops& ops() const override { return *ops_; }
  std::unique_ptr<Stream> make_stream() override { return planning_stream(planned_); }
  std::unique_ptr<Event> make_event() override { return std::make_unique<ImmediateEvent>(); }
  Result<Buffer> allocate(size_t bytes) override {
    ++counters_.allocations;
    PERCHERON_ASSIGN_OR_RETURN(void* data, memory_->reserve(bytes));
    return Buffer(data, bytes, memory_);
  }
  Result<Buffer> allocate_host(size_t bytes) override {
    ++counters_.host_allocations;
    PERCHERON_ASSIGN_OR_RETURN(void* data, host_memory_->reserve(bytes));
    return Buffer(data, bytes, host_memory_);
  }
  void bind_thread() override {}
  void copy_bytes(Stream&, void*, const void*, size_t) override {}
  void upload_bytes(Stream&, void*, const void*, size_t) override {}
  const AddressSpace& memory() const { return *memory_; }
  const AddressSpace& host_memory() const { return *host_memory_; }

 private:
  DeviceInfo info_;
  DeviceKind planned_;
  std::unique_ptr<Ops> ops_;
  std::shared_ptr<AddressSpace> memory_ = std::make_shared<AddressSpace>(PROT_NONE);
  // The host reads what it planned to copy: zeros.
  std::shared_ptr<AddressSpace> host_memory_ =
      std::make_shared<AddressSpace>(PROT_READ | PROT_WRITE);
};

const PlanningDevice& planning(const Device& device) {
  const auto* result = dynamic_cast<const PlanningDevice*>(&device);
  PERCHERON_CHECK(result != nullptr, "planned bytes are those of a planning device");
  return *result;
}

}  // namespace

std::unique_ptr<Device> make_planning_device(DeviceId id, const DeviceOptions& options) {
  return std::make_unique<PlanningDevice>(id, options);
}

size_t planned_bytes(const Device& device) { return planning(device).memory().peak(); }
size_t planned_host_bytes(const Device& device) { return planning(device).host_memory().peak(); }

}  // namespace percheron
