#include "kernels/planning_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <string>

#include "kernels/ops.h"

namespace percheron {
namespace {

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
    struct Packed final : PackedMatrix {
      Buffer buffer;
    };
    auto packed = std::make_unique<Packed>();
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

class PlanningStream final : public Stream {
 public:
  Status wait_idle() override { return take_error(); }
};

/// Counts what is alive; shared with the buffers, which may outlive the device's last use.
class AddressSpace final : public Buffer::Owner {
 public:
  Result<void*> reserve(size_t bytes) {
    void* data = mmap(nullptr, std::max<size_t>(bytes, 1), PROT_NONE,
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
  size_t in_use_ = 0, peak_ = 0;
};

class PlanningDevice final : public Device {
 public:
  PlanningDevice(DeviceId id, const DeviceOptions& options) {
    info_.id = id;
    info_.description = "planning: counts memory, computes nothing";
    info_.threads = std::max(1, options.threads);
  }
  const DeviceInfo& info() const override { return info_; }
  const Ops& ops() const override { return ops_; }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<PlanningStream>(); }
  Result<Buffer> allocate(size_t bytes) override {
    PERCHERON_ASSIGN_OR_RETURN(void* data, memory_->reserve(bytes));
    return Buffer(data, bytes, memory_);
  }
  void bind_thread() override {}
  void copy_bytes(Stream&, void*, const void*, size_t) override {}
  size_t peak() const { return memory_->peak(); }

 private:
  DeviceInfo info_;
  PlanningOps ops_;
  std::shared_ptr<AddressSpace> memory_ = std::make_shared<AddressSpace>();
};

}  // namespace

std::unique_ptr<Device> make_planning_device(DeviceId id, const DeviceOptions& options) {
  return std::make_unique<PlanningDevice>(id, options);
}

size_t planned_bytes(const Device& device) {
  const auto* planning = dynamic_cast<const PlanningDevice*>(&device);
  PERCHERON_CHECK(planning != nullptr, "planned_bytes() needs a planning device");
  return planning->peak();
}

}  // namespace percheron
