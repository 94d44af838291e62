#include "kernels/cuda/plugin/cuda_device.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/log.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/kernel_stream.h"
#include "kernels/cuda/plugin/cuda_card.h"
#include "kernels/cuda/plugin/event_timer.h"
#include "kernels/upload_ring.h"

namespace percheron::cuda {
namespace {

// What freeing and destroying give is dropped here: they fail only after an error of earlier work,
// which a wait reports.

class CudaMemory final : public Buffer::Owner {
 public:
  explicit CudaMemory(CudaCard& card) : card_(card) {}
  void release(void* data, size_t) override { (void)card_.runtime().free(data); }

 private:
  CudaCard& card_;
};

class PinnedMemory final : public Buffer::Owner {
 public:
  explicit PinnedMemory(CudaCard& card) : card_(card) {}
  void release(void* data, size_t) override { (void)card_.runtime().free_host(data); }

 private:
  CudaCard& card_;
};

class CudaEvent final : public Event {
 public:
  CudaEvent(CudaCard& card, DeviceCounters& counters) : card_(card), counters_(counters) {
    Status status = card_.select();
    if (status.ok()) status = card_.status(card_.runtime().create_event(&event_), "no event");
    made_ = status;
  }
  ~CudaEvent() override {
    if (made_.ok()) (void)card_.runtime().destroy_event(event_);
  }

  const Status& made() const { return made_; }
  void* handle() const { return event_; }
  Status wait() override {
    PERCHERON_RETURN_IF_ERROR(made_);
    ++counters_.waits;
    return card_.status(card_.runtime().synchronize_event(event_), "work before an event");
  }

 private:
  CudaCard& card_;
  DeviceCounters& counters_;
  void* event_ = nullptr;
  Status made_;
};

class CudaGraph final : public Graph {
 public:
  CudaGraph(CudaCard& card, void* executable) : card_(card), executable_(executable) {}
  ~CudaGraph() override { (void)card_.runtime().destroy_executable(executable_); }
  void* executable() const { return executable_; }

 private:
  CudaCard& card_;
  void* executable_;
};

class CudaStream final : public KernelStream {
 public:
  /// `made`: why there is no `stream`; every wait says it.
  CudaStream(CudaCard& card, Device& device, bool graphs, void* stream, Status made)
      : KernelStream(stream),
        card_(card),
        device_(device),
        graphs_(graphs),
        stream_(stream),
        made_(std::move(made)),
        ring_(device) {}
  ~CudaStream() override {
    if (made_.ok()) (void)card_.runtime().destroy_stream(stream_);
  }

  Status wait_idle() override {
    PERCHERON_RETURN_IF_ERROR(made_);
    ++device_.counters().waits;
    const RuntimeError done = card_.runtime().synchronize_stream(stream_);
    ring_.all_done();
    const std::string& refused = queue().error;  // of a launch, which came before the wait
    check(done, refused.empty() ? "work put in before a wait" : refused);
    collect_error();
    return take_error();
  }
  Status check() override {
    PERCHERON_RETURN_IF_ERROR(made_);
    return KernelStream::check();
  }
  void record(Event& event) override {
    const auto& point = static_cast<const CudaEvent&>(event);
    if (!made_.ok()) return;
    if (!point.made().ok()) return fail(point.made());
    check(card_.runtime().record_event(point.handle(), stream_), "recording an event");
  }
  void wait_for(const Event& event) override {
    const auto& point = static_cast<const CudaEvent&>(event);
    if (!made_.ok()) return;
    if (!point.made().ok()) return fail(point.made());
    check(card_.runtime().stream_wait_event(stream_, point.handle()), "waiting for an event");
  }
  void copy(void* destination, const void* source, size_t bytes) {
    if (!made_.ok()) return;
    ++queue().launches;
    check(card_.runtime().copy(stream_, destination, source, bytes),
          "a copy of " + std::to_string(bytes) + " bytes");
  }
  void upload(void* destination, const void* source, size_t bytes) {
    const Status status = ring_.put(*this, destination, source, bytes);
    if (!status.ok()) fail(status);
  }

  Status begin_recording() override {
    PERCHERON_RETURN_IF_ERROR(made_);
    if (!graphs_) return Stream::begin_recording();
    PERCHERON_RETURN_IF_ERROR(
        card_.status(card_.runtime().begin_capture(stream_), "beginning a capture"));
    set_errors_apart();
    return ok_status();
  }
  Result<std::unique_ptr<Graph>> end_recording() override {
    void* graph = nullptr;
    const RuntimeError ended = card_.runtime().end_capture(stream_, &graph);
    // What was refused says more than that the capture is not valid.
    Status status = errors_of_recording();
    if (status.ok()) status = card_.status(ended, "a capture");
    void* executable = nullptr;
    if (status.ok()) {
      status = card_.status(card_.runtime().instantiate_graph(&executable, graph), "a graph");
    }
    if (ended.ok() && graph != nullptr) (void)card_.runtime().destroy_graph(graph);
    PERCHERON_RETURN_IF_ERROR(status);
    return std::unique_ptr<Graph>(std::make_unique<CudaGraph>(card_, executable));
  }
  void launch(Graph& graph) override {
    ++queue().launches;
    check(card_.runtime().launch_graph(static_cast<CudaGraph&>(graph).executable(), stream_),
          "launching a graph");
  }

 private:
  void check(const RuntimeError& error, const std::string& what) {
    if (!error.ok()) fail(card_.status(error, what));
  }

  CudaCard& card_;
  Device& device_;
  const bool graphs_;
  void* stream_;
  Status made_;
  UploadRing ring_;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(DeviceInfo info, bool graphs, std::unique_ptr<CudaCard> card,
             std::unique_ptr<MatrixProducts> products, CausalAttention::Parts causal_attention)
      : info_(std::move(info)),
        graphs_(graphs),
        card_(std::move(card)),
        ops_(std::move(products), std::move(causal_attention)) {}

  const DeviceInfo& info() const override { return info_; }
  const Ops& ops() const override { return ops_; }

  std::unique_ptr<Stream> make_stream() override {
    void* stream = nullptr;
    Status status = card_->select();
    if (status.ok()) status = card_->status(card_->runtime().create_stream(&stream), "no stream");
    return std::make_unique<CudaStream>(*card_, *this, graphs_, stream, status);
  }
  std::unique_ptr<Event> make_event() override {
    return std::make_unique<CudaEvent>(*card_, counters_);
  }

  Result<Buffer> allocate(size_t bytes) override {
    ++counters_.allocations;
    PERCHERON_RETURN_IF_ERROR(card_->select());
    void* data = nullptr;
    const RuntimeError error = card_->runtime().allocate(&data, std::max<size_t>(bytes, 1));
    if (error.ok()) return Buffer(data, bytes, memory_);
    return card_->status(error, "no " + std::to_string(bytes) + " bytes of memory" + free_text());
  }
  Result<Buffer> allocate_host(size_t bytes) override {
    ++counters_.host_allocations;
    PERCHERON_RETURN_IF_ERROR(card_->select());
    void* data = nullptr;
    PERCHERON_RETURN_IF_ERROR(
        card_->status(card_->runtime().allocate_host(&data, std::max<size_t>(bytes, 1)),
                      "no " + std::to_string(bytes) + " bytes of pinned host memory"));
    return Buffer(data, bytes, pinned_);
  }

  void bind_thread() override { (void)card_->select(); }  // A failure comes again in allocate().

  void copy_bytes(Stream& stream, void* destination, const void* source, size_t bytes) override {
    if (bytes > 0) static_cast<CudaStream&>(stream).copy(destination, source, bytes);
  }
  void upload_bytes(Stream& stream, void* destination, const void* source, size_t bytes) override {
    static_cast<CudaStream&>(stream).upload(destination, source, bytes);
  }

 private:
  /// What an error about memory adds.
  std::string free_text() {
    uint64_t free_bytes = 0, total = 0;
    if (!card_->runtime().memory(&free_bytes, &total).ok()) return "";
    return ", " + std::to_string(free_bytes) + " of " + std::to_string(total) +
           " are free: give it less to hold (data.token_budget, loss.workspace_bytes, fewer "
           "trainers on it), or end what else uses it (nvidia-smi shows it)";
  }

  DeviceInfo info_;
  const bool graphs_;
  std::unique_ptr<CudaCard> card_;
  CudaOps ops_;
  std::shared_ptr<CudaMemory> memory_ = std::make_shared<CudaMemory>(*card_);
  std::shared_ptr<PinnedMemory> pinned_ = std::make_shared<PinnedMemory>(*card_);
};

// The first calls that need memory on the card.
Status claim(CudaCard& card, DeviceInfo& info) {
  PERCHERON_RETURN_IF_ERROR(card.select());
  return card.status(card.runtime().memory(&info.free_bytes, &info.memory_bytes),
                     "asking for its memory");
}

}  // namespace

Result<std::unique_ptr<Device>> make_cuda_device(DeviceId id, const DeviceOptions& options,
                                                 std::unique_ptr<Runtime> runtime,
                                                 const Libraries& libraries) {
  auto card = std::make_unique<CudaCard>(id, std::move(runtime));
  PERCHERON_RETURN_IF_ERROR(card->check_exists());
  Card described;
  PERCHERON_RETURN_IF_ERROR(
      card->status(card->runtime().card(id.index, &described), "asking what it is"));
  const std::string capability =
      std::to_string(described.major) + "." + std::to_string(described.minor);
  DeviceInfo info;
  info.id = id;
  const Status claimed = claim(*card, info);
  if (claimed.code() == StatusCode::kResourceExhausted) {
    return resource_exhausted(
        claimed.message() +
        "; others have left no memory for this process: end them (nvidia-smi shows them)");
  }
  PERCHERON_RETURN_IF_ERROR(claimed);
  if (!card->runtime().find_kernels().ok()) {
    return not_found(to_string(id) + " is a " + described.name + " of compute capability " +
                     capability +
                     ", for which this build has no code: build it with "
                     "PERCHERON_CUDA_ARCHITECTURES=" +
                     std::to_string(described.major * 10 + described.minor) + "-real");
  }
  PERCHERON_ASSIGN_OR_RETURN(std::unique_ptr<MatrixProducts> products, libraries.make_products());
  info.description = described.name + ", compute capability " + capability;
  info.threads = std::max(1, options.threads);
  info.native_bf16 = true;
  info.own_memory = true;
  info.graphs = true;
  CausalAttention::Parts attention{
      .wanted = options.causal_attention,
      .open_library = libraries.open_attention,
      .timer = std::make_unique<EventTimer>(*card),
      .tell = [id](const std::string& line) { log_info("{}: {}", to_string(id), line); }};
  return std::unique_ptr<Device>(std::make_unique<CudaDevice>(
      info, options.graphs, std::move(card), std::move(products), std::move(attention)));
}

}  // namespace percheron::cuda
