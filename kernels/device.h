#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kernels/tensor.h"

namespace percheron {

class Ops;

enum class DeviceKind { kCpu, kCuda, kEmulated, kPlanning };

/// A device by name: "cpu:0", "cuda:3", "emulated:0". `cpu:N` is logical, any N < 256.
struct DeviceId {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;

  auto operator<=>(const DeviceId&) const = default;
};

/// kInvalidArgument if `name` is not KIND:INDEX with a known kind.
Result<DeviceId> parse_device_id(std::string_view name);
std::string to_string(DeviceId id);

struct DeviceInfo {
  DeviceId id;
  std::string description;   // processor or card, and instruction set in use
  int threads = 1;           // cores that its operations may use
  bool native_bf16 = false;  // bf16 products, where faster than f32; else bf16 is only stored
  bool own_memory = false;   // not the host's
  bool immediate = false;    // operations are done when they return, in memory of the host's
  bool graphs = false;       // work is launched, and may be recorded as graphs: rows are padded
  uint64_t memory_bytes = 0;
  uint64_t free_bytes = 0;  // of it, when the device was opened; others may use it too
};

/// What a device was asked for since it was opened. Any thread may read.
struct DeviceCounters {
  std::atomic<uint64_t> allocations{0};       // of device memory; freeing waits for the device
  std::atomic<uint64_t> host_allocations{0};  // by allocate_host()
  std::atomic<uint64_t> waits{0};            // of a thread for the device: for a stream or an event
  std::atomic<uint64_t> scratch_growths{0};  // of arenas beyond what was reserved
  std::atomic<uint64_t> graphs_recorded{0}, graphs_launched{0};
  std::atomic<uint64_t> graphs_refused{0};  // recordings that failed
};

/// Device memory, or the host's by allocate_host(); freed with the object. 64-byte aligned.
class Buffer {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void release(void* data, size_t bytes) = 0;
  };

  Buffer() = default;
  Buffer(void* data, size_t bytes, std::shared_ptr<Owner> owner)
      : data_(data), bytes_(bytes), owner_(std::move(owner)) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer(std::move(other)).swap(*this);
    return *this;
  }
  ~Buffer() {
    if (owner_) owner_->release(data_, bytes_);
  }

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(owner_, other.owner_);
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  std::shared_ptr<Owner> owner_;
};

/// An owned contiguous tensor in the memory of one device.
class Tensor {
 public:
  Tensor() = default;
  Tensor(Buffer buffer, DType dtype, std::span<const int64_t> shape)
      : buffer_(std::move(buffer)), view_(buffer_.data(), dtype, shape) {}

  const TensorView& view() const { return view_; }
  operator TensorView() const { return view_; }       // NOLINT
  operator ConstTensorView() const { return view_; }  // NOLINT
  bool present() const { return view_.present(); }

 private:
  Buffer buffer_;
  TensorView view_;
};

/// A point in a stream's order of work, for other streams and threads to wait for.
class Event {
 public:
  virtual ~Event() = default;
  /// Waits until the work before the point is done, whatever became of it: an error of it is for
  /// its stream's wait_idle(), one of the device for who waits too. At once if there is no such
  /// point yet. Any thread, but not while another one records.
  virtual Status wait() = 0;
};

/// Work of a stream that was recorded once, with the addresses and numbers that it then had. Goes
/// only while no launch of it is under way.
class Graph {
 public:
  virtual ~Graph() = default;
};

/// An order of work on one device. Operations return at once and run in order; the first error is
/// kept, and what an operation writes after it means nothing. Used by one thread at a time.
class Stream {
 public:
  virtual ~Stream() = default;
  /// Waits until all work is done; returns and clears the first error.
  virtual Status wait_idle() = 0;
  /// Moves `event`, of the same device, to behind the work so far.
  virtual void record(Event& event) = 0;
  /// What is put in from now on begins only when the work before `event`, as it stands now, is
  /// done. The thread does not wait.
  virtual void wait_for(const Event& event) = 0;
  /// The first error that is known without a wait, as of work that was refused when it was put in;
  /// it is cleared.
  virtual Status check() { return take_error(); }

  /// From now on kernels and products are not run but recorded; nothing else may be put in until
  /// end_recording(): no copy from or to the host, no event, no wait, no memory.
  /// kFailedPrecondition where the device can't (DeviceInfo::graphs); what is put in then runs as
  /// ever.
  virtual Status begin_recording();
  /// What was recorded, none of which has run. An error says what could not be recorded; the stream
  /// is then as it was before begin_recording().
  virtual Result<std::unique_ptr<Graph>> end_recording();
  /// Puts in what `graph`, of a stream of the same device, holds: one launch.
  virtual void launch(Graph& graph);
  /// Kernels, products, copies and graphs that were put in so far; 0 on devices that don't count.
  virtual uint64_t launches() const { return 0; }

  /// Keeps an operation's error for wait_idle(), unless there is one already.
  void fail(Status error) {
    if (error_.ok()) error_ = std::move(error);
  }

 protected:
  /// The first error, which is cleared.
  Status take_error() { return std::exchange(error_, Status()); }

 private:
  Status error_;
};

/// One processor with its memory. Created by open_device(); outlives everything made from it.
class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;
  virtual const Ops& ops() const = 0;
  /// A new order of work; independent of the device's other streams.
  virtual std::unique_ptr<Stream> make_stream() = 0;
  /// A new point, in no stream yet. Errors are kept by the stream that records it.
  virtual std::unique_ptr<Event> make_event() = 0;
  /// Uninitialised memory, 64-byte aligned; zero bytes are allowed. kResourceExhausted if there is
  /// not enough. Any thread. The host must not touch it but by copy_bytes().
  virtual Result<Buffer> allocate(size_t bytes) = 0;
  /// Memory of the host that the device copies from and to without the processor's help: pinned.
  /// Dear to make, so kept and reused. Errors as allocate(). Any thread.
  virtual Result<Buffer> allocate_host(size_t bytes) = 0;
  /// Binds the calling thread: operations that it issues use this device's cores. Called once by a
  /// device's worker thread before anything else.
  virtual void bind_thread() = 0;
  /// Copies between host and device memory in the order of `stream`; host memory must stay valid
  /// until the stream is idle. A GPU copies from memory that is not pinned only after the work
  /// before it, and the thread waits for that.
  virtual void copy_bytes(Stream& stream, void* destination, const void* source, size_t bytes) = 0;
  /// Copies a few bytes (indices, weights of rows) to the device in the order of `stream`, by way
  /// of pinned memory that the stream keeps: `source` may go at once, and the thread waits only if
  /// the stream is far behind.
  virtual void upload_bytes(Stream& stream, void* destination, const void* source, size_t bytes) {
    copy_bytes(stream, destination, source, bytes);
  }

  const DeviceCounters& counters() const { return counters_; }
  DeviceCounters& counters() { return counters_; }

  /// An uninitialised tensor of non-negative extents; owns its memory. Errors as allocate().
  Result<Tensor> make_tensor(DType dtype, std::span<const int64_t> shape);
  Result<Tensor> make_tensor(DType dtype, std::initializer_list<int64_t> shape) {
    return make_tensor(dtype, std::span<const int64_t>(shape.begin(), shape.size()));
  }

 protected:
  DeviceCounters counters_;
};

/// Whose kernel runs Ops::causal_attention() on a device that has two; others have one of their
/// own.
enum class AttentionKernel {
  kOwn,     // Percheron's: a document's bits do not depend on its neighbours
  kCudnn,   // cuDNN's, where it takes the shapes
  kFaster,  // the faster one, as measured once per class of shapes: may differ from run to run
};

struct DeviceOptions {
  int threads = 0;  // 0 = all cores
  AttentionKernel causal_attention = AttentionKernel::kOwn;
  bool graphs = true;  // where the device has them; without them rows are padded all the same
  /// What a planning device counts for: kCpu, or kCuda, whose operations take other scratch memory.
  DeviceKind planned = DeviceKind::kCpu;
};

/// Opens a device. kNotFound names the devices that there are when `id` is not one of them.
/// DeviceKind::kPlanning gives a device whose operations do nothing and whose memory is only
/// counted.
Result<std::unique_ptr<Device>> open_device(DeviceId id, const DeviceOptions& options);

/// Scratch and activation memory of one stream: a stack of tensors in device memory that grows in
/// blocks and is reused every step. Not thread-safe.
class Arena {
 public:
  explicit Arena(Device& device) : device_(device) {}

  /// Uninitialised, 64-byte aligned; valid until the enclosing Scope ends. A device without the
  /// memory ends the process, after one line that says so: nothing of a step is worth keeping then,
  /// and the worker's parent or the user starts again from the last checkpoint.
  TensorView take(DType dtype, std::initializer_list<int64_t> shape);
  /// Gets `bytes` in one piece ahead, while nothing is taken: as long as no more is in use at once,
  /// take() never allocates. If more is, that is said once and counted by the device.
  /// kResourceExhausted without the memory.
  Status reserve(size_t bytes);
  size_t bytes_in_use() const { return in_use_; }
  size_t bytes_peak() const { return peak_; }
  size_t bytes_reserved() const { return reserved_; }
  size_t bytes_held() const;
  /// Where the next tensor will lie, if it fits there, and a number that changes whenever memory
  /// was got or freed: as long as both are the same, the same calls take the same addresses.
  const void* position() const;
  uint64_t generation() const { return generation_; }

  /// Gives back on destruction what was taken since construction. Scopes nest.
  class Scope {
   public:
    explicit Scope(Arena& arena)
        : arena_(arena), block_(arena.block_), offset_(arena.offset_), in_use_(arena.in_use_) {}
    ~Scope() {
      arena_.block_ = block_;
      arena_.offset_ = offset_;
      arena_.in_use_ = in_use_;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
    size_t block_, offset_, in_use_;
  };

 private:
  size_t next_block_bytes() const;
  void add_block(size_t bytes);

  Device& device_;
  std::vector<Buffer> blocks_;
  size_t block_ = 0, offset_ = 0;
  size_t in_use_ = 0, peak_ = 0, reserved_ = 0;
  uint64_t generation_ = 0;
  bool growth_told_ = false;
};

/// What every operation needs: where it runs, in which order, and scratch memory.
struct Context {
  Device& device;
  Stream& stream;
  Arena& arena;
  /// Whether few rows are run at a time, so that products are bound by reading the weight: a device
  /// may have other products for them. A row's bits never depend on the rows beside it, but may
  /// differ from those it has elsewhere.
  bool decoding = false;
};

/// Makes a context one for decoding while it lives.
class DecodingScope {
 public:
  explicit DecodingScope(Context& context) : context_(context), before_(context.decoding) {
    context.decoding = true;
  }
  ~DecodingScope() { context_.decoding = before_; }
  DecodingScope(const DecodingScope&) = delete;
  DecodingScope& operator=(const DecodingScope&) = delete;

 private:
  Context& context_;
  bool before_;
};

}  // namespace percheron
