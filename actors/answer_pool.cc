#include "actors/answer_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <thread>
#include <utility>

namespace percheron {
namespace {

int threads_of(const AnswerPoolOptions& options) {
  if (options.threads > 0) return options.threads;
  const auto cpus = std::count_if(options.devices.begin(), options.devices.end(),
                                  [](const DeviceId& id) { return id.kind != DeviceKind::kCuda; });
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return std::max(1, cores / std::max(1, static_cast<int>(cpus)));
}

Status check_devices(const std::vector<DeviceId>& devices) {
  if (devices.empty()) return invalid_argument("no device is given; cpu:0 is one");
  std::set<DeviceId> seen;
  for (const DeviceId id : devices) {
    if (id.kind == DeviceKind::kPlanning)
      return invalid_argument(to_string(id) + " only counts memory and can't answer");
    if (!seen.insert(id).second)
      return invalid_argument("device " + to_string(id) + " is given twice; name each once");
  }
  return ok_status();
}

}  // namespace

/// Between one device's generate() and what all devices share.
class AnswerPool::DeviceClient : public GenerationClient {
 public:
  DeviceClient(AnswerPool& pool, size_t device) : pool_(pool), device_(device) {}

  std::optional<GenerationRequest> next(Wait wait) override {
    return pool_.queue_.take(device_, wait);
  }
  void answered(uint64_t id, Generated answer) override {
    pool_.queue_.done(device_);
    const std::lock_guard lock(pool_.receiver_mutex_);
    pool_.receiver_.answered(id, std::move(answer));
  }
  void refused(uint64_t id, const Status& why) override {
    pool_.queue_.done(device_);
    const std::lock_guard lock(pool_.receiver_mutex_);
    pool_.receiver_.refused(id, why);
  }
  bool cancelled() const override { return pool_.queue_.cancelled(); }

 private:
  AnswerPool& pool_;
  size_t device_;
};

Result<std::unique_ptr<AnswerPool>> AnswerPool::start(FileSystem& files, const Clock& clock,
                                                      AnswerPoolOptions options,
                                                      AnswerReceiver& receiver) {
  PERCHERON_RETURN_IF_ERROR(check_devices(options.devices));
  std::unique_ptr<AnswerPool> pool(new AnswerPool(std::move(options), receiver));
  PERCHERON_RETURN_IF_ERROR(pool->open(files, clock));
  for (size_t i = 0; i < pool->workers_.size(); ++i) pool->begin(i);
  return pool;
}

Status AnswerPool::open(FileSystem& files, const Clock& clock) {
  for (const DeviceId id : options_.devices) {
    PERCHERON_ASSIGN_OR_RETURN(std::unique_ptr<DeviceWorker> worker,
                               DeviceWorker::start(id, DeviceOptions{threads_of(options_)}, clock));
    workers_.push_back(std::move(worker));
    targets_.emplace_back();
    const Status loaded = workers_.back()->run([&](Context& context) -> Status {
      TargetOptions target;
      target.compute_dtype = options_.dtype;
      PERCHERON_ASSIGN_OR_RETURN(targets_.back(),
                                 Target::load(files, options_.target, context, target));
      return ok_status();
    });
    if (!loaded.ok()) return loaded.with_context(to_string(id));
  }
  weights_hash_ = targets_.front()->weights_hash();
  return settle_options(targets_.front()->config());
}

Status AnswerPool::settle_options(const ModelConfig& config) {
  GenerateOptions& generate = options_.generate;
  if (generate.stop_token_ids.empty()) generate.stop_token_ids = config.eos_token_ids;
  const int64_t positions = config.max_position_embeddings;
  if (generate.context_max > positions) {
    return invalid_argument(
        fmt::format("a context of {} tokens is asked for, and {} has {} positions; ask for no more",
                    generate.context_max, options_.target, positions));
  }
  if (generate.context_max == 0) generate.context_max = positions;
  return ok_status();
}

void AnswerPool::begin(size_t device) {
  {
    const std::lock_guard lock(mutex_);
    ++running_;
  }
  workers_[device]->post([this, device](Context& context) {
    DeviceClient client(*this, device);
    finished(generate(context, *targets_[device], client, options_.generate)
                 .with_context(workers_[device]->name()));
  });
}

void AnswerPool::finished(Status status) {
  if (!status.ok() && status.code() != StatusCode::kCancelled) {
    // What this device had in flight is lost, so the rest is not worth waiting for.
    queue_.cancel();
    const std::lock_guard lock(receiver_mutex_);
    receiver_.failed(status);
  }
  const std::lock_guard lock(mutex_);
  if (first_error_.ok() || first_error_.code() == StatusCode::kCancelled) {
    if (!status.ok()) first_error_ = std::move(status);
  }
  --running_;
  all_finished_.notify_all();
}

Status AnswerPool::wait() {
  std::unique_lock lock(mutex_);
  all_finished_.wait(lock, [this] { return running_ == 0; });
  return first_error_;
}

AnswerPool::~AnswerPool() {
  cancel();
  (void)wait();
  for (size_t i = 0; i < workers_.size(); ++i) {
    (void)workers_[i]->run([this, i](Context&) {
      targets_[i].reset();
      return ok_status();
    });
  }
}

}  // namespace percheron
