#pragma once

#include <map>
#include <mutex>
#include <string>

#include "kernels/cuda/emulator/work_queue.h"
#include "kernels/cuda/plugin/cuda_runtime.h"

namespace percheron::cuda {

/// A CUDA runtime without a GPU: cards whose streams are the emulator's, and whose calls fail as a
/// test wants. Kernels and products that are made for the emulator run on its streams.
class FakeRuntime final : public Runtime {
 public:
  struct Machine {
    int devices = 1;
    int driver_version = 13000, runtime_version = 13000;
    uint64_t memory_bytes = uint64_t{1} << 30;
  };

  explicit FakeRuntime(const Machine& machine)
      : machine_(machine),
        emulator_({.workers = 1}),
        memory_(emulator::MemoryGuard::kPlain, machine.memory_bytes),
        timeline_(emulator_, memory_) {}

  /// From now on the call of this name gives `error`, and after kLost every call does.
  void fail(const std::string& call, const RuntimeError& error) { failures_[call] = error; }

  RuntimeError device_count(int* count) override;
  int driver_version() override { return machine_.driver_version; }
  int runtime_version() override { return machine_.runtime_version; }
  RuntimeError set_device(int) override { return outcome("set_device"); }
  RuntimeError card(int, Card* card) override {
    *card = {"FAKE 9000", 9, 0};
    return outcome("card");
  }
  RuntimeError memory(uint64_t* free_bytes, uint64_t* total_bytes) override {
    *free_bytes = memory_.bytes_free();
    *total_bytes = machine_.memory_bytes;
    return outcome("memory");
  }
  RuntimeError find_kernels() override { return outcome("find_kernels"); }

  RuntimeError allocate(void** data, size_t bytes) override;
  RuntimeError free(void* data) override;
  RuntimeError allocate_host(void** data, size_t bytes) override;
  RuntimeError free_host(void* data) override;
  RuntimeError create_stream(void** stream) override;
  RuntimeError destroy_stream(void* stream) override;
  RuntimeError synchronize_stream(void* stream) override;
  RuntimeError copy(void* stream, void* destination, const void* source, size_t bytes) override;
  RuntimeError create_event(void** event) override;
  RuntimeError create_timed_event(void** event) override { return create_event(event); }
  RuntimeError destroy_event(void* event) override;
  RuntimeError record_event(void* event, void* stream) override;
  RuntimeError stream_wait_event(void* stream, void* event) override;
  RuntimeError synchronize_event(void* event) override;
  /// A millisecond for each timed pair since the first.
  RuntimeError elapsed(float* ms, void* begin, void* end) override;

  RuntimeError begin_capture(void* stream) override;
  RuntimeError end_capture(void* stream, void** graph) override;
  RuntimeError destroy_graph(void* graph) override;
  RuntimeError instantiate_graph(void** executable, void* graph) override;
  RuntimeError launch_graph(void* executable, void* stream) override;
  RuntimeError destroy_executable(void* executable) override { return destroy_graph(executable); }

  /// What was created and not destroyed.
  size_t streams() const { return streams_.size(); }
  size_t events() const { return events_.size(); }
  size_t pieces() const { return pieces_.size(); }
  size_t graphs() const { return graphs_.size(); }

 private:
  RuntimeError outcome(const std::string& call);
  emulator::WorkQueue& queue(void* stream) { return *streams_.at(stream); }

  const Machine machine_;
  emulator::Machine emulator_;
  emulator::DeviceMemory memory_;
  emulator::Timeline timeline_;
  std::map<std::string, RuntimeError> failures_;
  RuntimeError lost_;
  std::map<void*, std::shared_ptr<emulator::WorkQueue>> streams_;
  std::map<void*, emulator::QueuePoint> events_;
  std::map<void*, size_t> pieces_;  // of device memory; 0 bytes = pinned
  std::map<void*, std::shared_ptr<const emulator::WorkQueue::Recording>> graphs_;
  uintptr_t next_event_ = 1, next_graph_ = 1;
  float next_ms_ = 1;
};

inline RuntimeError no_memory() {
  return {RuntimeError::Kind::kNoMemory, "cudaErrorMemoryAllocation", "out of memory"};
}

inline RuntimeError FakeRuntime::outcome(const std::string& call) {
  if (!lost_.ok()) return lost_;
  const auto failure = failures_.find(call);
  if (failure == failures_.end()) return {};
  if (failure->second.kind == RuntimeError::Kind::kLost) lost_ = failure->second;
  return failure->second;
}

inline RuntimeError FakeRuntime::device_count(int* count) {
  *count = 0;
  if (machine_.driver_version < machine_.runtime_version) {
    return {RuntimeError::Kind::kNoDevice, "cudaErrorInsufficientDriver",
            "CUDA driver version is insufficient for CUDA runtime version"};
  }
  *count = machine_.devices;
  return outcome("device_count");
}

inline RuntimeError FakeRuntime::allocate(void** data, size_t bytes) {
  RuntimeError error = outcome("allocate");
  if (!error.ok()) return error;
  const Result<void*> memory = memory_.allocate(bytes);
  if (!memory.ok()) return no_memory();
  *data = *memory;
  pieces_[*data] = bytes;
  return {};
}

inline RuntimeError FakeRuntime::free(void* data) {
  timeline_.finish_all();
  memory_.release(data, pieces_.at(data));
  pieces_.erase(data);
  return outcome("free");
}

inline RuntimeError FakeRuntime::allocate_host(void** data, size_t bytes) {
  RuntimeError error = outcome("allocate_host");
  if (!error.ok()) return error;
  *data = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  pieces_[*data] = 0;
  return {};
}

inline RuntimeError FakeRuntime::free_host(void* data) {
  timeline_.finish_all();
  std::free(data);
  pieces_.erase(data);
  return outcome("free_host");
}

inline RuntimeError FakeRuntime::create_stream(void** stream) {
  RuntimeError error = outcome("create_stream");
  if (!error.ok()) return error;
  const std::shared_ptr<emulator::WorkQueue> queue = timeline_.make_queue();
  *stream = queue.get();
  streams_[*stream] = queue;
  return {};
}

inline RuntimeError FakeRuntime::destroy_stream(void* stream) {
  (void)queue(stream).finish();
  streams_.erase(stream);
  return outcome("destroy_stream");
}

inline RuntimeError FakeRuntime::synchronize_stream(void* stream) {
  const RuntimeError error = outcome("synchronize_stream");
  if (!error.ok() || stream == nullptr) return error;
  const Status done = queue(stream).finish();
  if (done.ok()) return {};
  return {RuntimeError::Kind::kOther, "emulator", done.message()};
}

inline RuntimeError FakeRuntime::copy(void* stream, void* destination, const void* source,
                                      size_t bytes) {
  const RuntimeError error = outcome("copy");
  if (error.ok()) queue(stream).copy(destination, source, bytes);
  return error;
}

inline RuntimeError FakeRuntime::create_event(void** event) {
  RuntimeError error = outcome("create_event");
  if (!error.ok()) return error;
  *event = reinterpret_cast<void*>(next_event_++);
  events_[*event] = {};
  return {};
}

inline RuntimeError FakeRuntime::destroy_event(void* event) {
  events_.erase(event);
  return outcome("destroy_event");
}

inline RuntimeError FakeRuntime::record_event(void* event, void* stream) {
  const RuntimeError error = outcome("record_event");
  if (error.ok()) events_.at(event) = queue(stream).point();
  return error;
}

inline RuntimeError FakeRuntime::stream_wait_event(void* stream, void* event) {
  const RuntimeError error = outcome("stream_wait_event");
  if (error.ok()) queue(stream).wait_for(events_.at(event));
  return error;
}

inline RuntimeError FakeRuntime::elapsed(float* ms, void* begin, void* end) {
  PERCHERON_CHECK(events_.at(begin).queue == events_.at(end).queue, "events of one stream");
  *ms = next_ms_++;
  return outcome("elapsed");
}

inline RuntimeError FakeRuntime::begin_capture(void* stream) {
  const RuntimeError error = outcome("begin_capture");
  if (error.ok()) PERCHERON_CHECK(queue(stream).begin_recording().ok(), "one capture at a time");
  return error;
}

inline RuntimeError FakeRuntime::end_capture(void* stream, void** graph) {
  const auto recorded = queue(stream).end_recording();
  RuntimeError error = outcome("end_capture");
  if (error.ok() && !recorded.ok()) {
    error = {RuntimeError::Kind::kOther, "cudaErrorStreamCaptureInvalidated",
             recorded.status().message()};
  }
  if (!error.ok()) return error;
  *graph = reinterpret_cast<void*>(next_graph_++);
  graphs_[*graph] = *recorded;
  return {};
}

inline RuntimeError FakeRuntime::destroy_graph(void* graph) {
  graphs_.erase(graph);
  return outcome("destroy_graph");
}

inline RuntimeError FakeRuntime::instantiate_graph(void** executable, void* graph) {
  const RuntimeError error = outcome("instantiate_graph");
  if (!error.ok()) return error;
  *executable = reinterpret_cast<void*>(next_graph_++);
  graphs_[*executable] = graphs_.at(graph);
  return {};
}

inline RuntimeError FakeRuntime::launch_graph(void* executable, void* stream) {
  const RuntimeError error = outcome("launch_graph");
  if (error.ok()) queue(stream).replay(graphs_.at(executable));
  return error;
}

inline RuntimeError FakeRuntime::synchronize_event(void* event) {
  const RuntimeError error = outcome("synchronize_event");
  if (error.ok()) (void)emulator::WorkQueue::finish(events_.at(event));
  return error;
}

}  // namespace percheron::cuda
