#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace percheron::cuda {

/// What a call of CUDA's runtime gave: its number, name and words.
struct RuntimeError {
  /// kNoMemory: there was not enough. kLost: the process's part of the device is gone, and every
  /// later call of it fails. kOther: only this call failed.
  enum class Kind { kNone, kNoMemory, kNoDevice, kLost, kOther };

  Kind kind = Kind::kNone;
  std::string name, text;

  bool ok() const { return kind == Kind::kNone; }
};

/// A card as the driver describes it.
struct Card {
  std::string name;
  int major = 0, minor = 0;  // compute capability
};

/// The calls of CUDA's runtime that CudaDevice makes, so that tests can put another one in its
/// place and let any call fail. Each does what the runtime's function of that name does, with
/// streams and events as opaque pointers. Any thread.
class Runtime {
 public:
  virtual ~Runtime() = default;

  virtual RuntimeError device_count(int* count) = 0;
  /// CUDA's versions, as 1000 * major + 10 * minor; 0 for a driver that is not there.
  virtual int driver_version() = 0;
  virtual int runtime_version() = 0;
  virtual RuntimeError set_device(int index) = 0;
  virtual RuntimeError card(int index, Card* card) = 0;
  virtual RuntimeError memory(uint64_t* free_bytes, uint64_t* total_bytes) = 0;
  /// Whether this build has code for the current device.
  virtual RuntimeError find_kernels() = 0;

  virtual RuntimeError allocate(void** data, size_t bytes) = 0;
  virtual RuntimeError free(void* data) = 0;
  virtual RuntimeError allocate_host(void** data, size_t bytes) = 0;
  virtual RuntimeError free_host(void* data) = 0;

  virtual RuntimeError create_stream(void** stream) = 0;
  virtual RuntimeError destroy_stream(void* stream) = 0;
  virtual RuntimeError synchronize_stream(void* stream) = 0;
  virtual RuntimeError copy(void* stream, void* destination, const void* source, size_t bytes) = 0;

  virtual RuntimeError create_event(void** event) = 0;
  /// An event that elapsed() takes.
  virtual RuntimeError create_timed_event(void** event) = 0;
  virtual RuntimeError destroy_event(void* event) = 0;
  virtual RuntimeError record_event(void* event, void* stream) = 0;
  virtual RuntimeError stream_wait_event(void* stream, void* event) = 0;
  virtual RuntimeError synchronize_event(void* event) = 0;
  /// Milliseconds between two timed events that work has passed.
  virtual RuntimeError elapsed(float* ms, void* begin, void* end) = 0;

  /// Of the calling thread alone: calls of others are never refused for it.
  virtual RuntimeError begin_capture(void* stream) = 0;
  virtual RuntimeError end_capture(void* stream, void** graph) = 0;
  virtual RuntimeError destroy_graph(void* graph) = 0;
  virtual RuntimeError instantiate_graph(void** executable, void* graph) = 0;
  virtual RuntimeError launch_graph(void* executable, void* stream) = 0;
  virtual RuntimeError destroy_executable(void* executable) = 0;
};

}  // namespace percheron::cuda
