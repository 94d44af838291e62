#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "actors/device_worker.h"
#include "actors/request_queue.h"
#include "base/clock.h"
#include "base/file_system.h"
#include "model/generation.h"
#include "model/target.h"

namespace percheron {

struct AnswerPoolOptions {
  std::string target;             // Hugging Face directory
  std::vector<DeviceId> devices;  // each loads its own target
  int threads = 0;                // cores of each CPU device; 0 = all, shared evenly
  DType dtype = DType::kBf16;     // of the target's products
  GenerateOptions generate;       // `slots` of each device. No stop tokens: the target's own.
                                  // context_max 0: as many as the target has positions
};

/// Who gets the answers. Called by the devices' threads, one call at a time.
class AnswerReceiver {
 public:
  virtual ~AnswerReceiver() = default;
  virtual void answered(uint64_t id, Generated answer) = 0;
  virtual void refused(uint64_t id, const Status& why) = 0;
  /// A device can't go on; the others stop as well.
  virtual void failed(const Status& error) = 0;
};

/// Targets on several devices that answer one queue of prompts, each by continuous batching. An
/// answer does not depend on the device or on what else is answered, within generate()'s limits.
class AnswerPool {
 public:
  /// Opens the devices and loads the targets. `files`, `clock` and `receiver` are borrowed. Errors
  /// as open_device() and Target::load(), naming the device; kInvalidArgument for a device that is
  /// named twice.
  static Result<std::unique_ptr<AnswerPool>> start(FileSystem& files, const Clock& clock,
                                                   AnswerPoolOptions options,
                                                   AnswerReceiver& receiver);
  /// Cancels what is not done.
  ~AnswerPool();

  /// Any thread. Errors as RequestQueue::push().
  Status post(GenerationRequest request) { return queue_.push(std::move(request)); }
  void close() { queue_.close(); }
  void cancel() { queue_.cancel(); }
  /// After close() or cancel(): waits for all devices. The first device's error, which cancels the
  /// others; kCancelled after cancel(), unless all was done.
  Status wait();

  /// The same for all devices.
  const std::string& weights_hash() const { return weights_hash_; }
  /// Tokens of a prompt and its answer at most.
  int64_t context_max() const { return options_.generate.context_max; }
  size_t devices() const { return workers_.size(); }

 private:
  class DeviceClient;

  AnswerPool(AnswerPoolOptions options, AnswerReceiver& receiver)
      : options_(std::move(options)), receiver_(receiver), queue_(options_.devices.size()) {}
  Status open(FileSystem& files, const Clock& clock);
  Status settle_options(const ModelConfig& config);
  void begin(size_t device);
  void finished(Status status);

  AnswerPoolOptions options_;
  AnswerReceiver& receiver_;
  std::mutex receiver_mutex_;
  RequestQueue queue_;
  std::string weights_hash_;
  std::vector<std::unique_ptr<DeviceWorker>> workers_;
  std::vector<std::unique_ptr<Target>> targets_;  // by worker; made and freed on its thread

  std::mutex mutex_;
  std::condition_variable all_finished_;
  size_t running_ = 0;
  Status first_error_;
};

}  // namespace percheron
