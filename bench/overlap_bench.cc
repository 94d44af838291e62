// How much of the sum of gradients over the trainers is left when their backward passes end: begun
// after them, and begun while they go on. Both in turns, on trainers of one process that all have a
// micro-batch, with random weights and states.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <future>
#include <memory>
#include <thread>

#include "actors/gradient_buckets.h"
#include "actors/gradient_reduction.h"
#include "base/random.h"
#include "base/units.h"
#include "bench/measurement.h"
#include "kernels/collective.h"
#include "kernels/device_collective.h"
#include "model/drafter_config.h"
#include "tools/engine.h"

namespace percheron {
namespace {

using Clock = std::chrono::steady_clock;

struct Settings {
  std::string kind = "cpu";
  int ranks = 2;
  int threads = 1;
  int64_t hidden = 576, layers = 4, tokens = 384;
  int64_t bucket_kib = 4096;
  int steps = 9;
};

/// In which way a step's gradients are summed.
enum class Way { kHost, kAfter, kDuring };
constexpr std::array kWays = {Way::kHost, Way::kAfter, Way::kDuring};

ModelConfig target_shape(const Settings& settings) {
  ModelConfig config;
  config.model_type = "llama";
  config.hidden_size = settings.hidden;
  config.intermediate_size = settings.hidden * 8 / 3;
  config.num_hidden_layers = 30;
  config.head_dim = 64;
  config.num_attention_heads = settings.hidden / 64;
  config.num_key_value_heads = config.num_attention_heads;
  config.vocab_size = 8192;
  config.max_position_embeddings = 8192;
  config.rms_norm_eps = 1e-5;
  config.rope.theta = 100000;
  config.rope.original_max_position_embeddings = 8192;
  return config;
}

/// One trainer: a device with its thread's stream, a drafter, and what it learns from.
struct Trainer {
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream, sum_stream;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<Context> context;
  Tensor table, norm;
  std::unique_ptr<Drafter> drafter;
  std::unique_ptr<GradientBuckets> buckets;
  std::vector<float> host;  // gradients of Way::kHost
};

Features random_features(const Settings& settings, const DrafterConfig& config, uint64_t seed) {
  Features result;
  result.dtype = DType::kF32;
  result.slots = static_cast<int64_t>(config.capture.size()) + 1;
  result.hidden_size = settings.hidden;
  result.has_last = true;
  Random random(seed);
  MicroBatch& batch = result.batch;
  batch.offsets = {0, static_cast<int32_t>(settings.tokens)};
  batch.sample_ids = {seed};
  for (int64_t i = 0; i < settings.tokens; ++i) {
    batch.token_ids.push_back(static_cast<uint32_t>(random.below(8192)));
    batch.loss_mask.push_back(1);
    result.top1.push_back(static_cast<int32_t>(batch.token_ids.back()));
  }
  const auto count = static_cast<size_t>(settings.tokens * result.slots * settings.hidden);
  result.hidden_states.resize(count * sizeof(float));
  for (size_t i = 0; i < count; ++i) {
    reinterpret_cast<float*>(result.hidden_states.data())[i] =
        static_cast<float>(random.uniform() - 0.5);
  }
  return result;
}

Result<Trainer> make_trainer(const Settings& settings, const DrafterConfig& config, int rank) {
  Trainer made;
  PERCHERON_ASSIGN_OR_RETURN(const DeviceId id,
                             parse_device_id(fmt::format("{}:{}", settings.kind, rank)));
  PERCHERON_ASSIGN_OR_RETURN(made.device, open_device(id, {.threads = settings.threads}));
  made.device->bind_thread();
  made.stream = made.device->make_stream();
  made.sum_stream = made.device->make_stream();
  made.arena = std::make_unique<Arena>(*made.device);
  made.context = std::make_unique<Context>(Context{*made.device, *made.stream, *made.arena});
  const int64_t vocabulary = 8192;
  std::vector<float> values(static_cast<size_t>(vocabulary * settings.hidden));
  Random random(7);
  for (float& value : values) value = static_cast<float>(0.1 * (random.uniform() - 0.5));
  const std::vector<float> ones(static_cast<size_t>(settings.hidden), 1.0f);
  PERCHERON_ASSIGN_OR_RETURN(made.table,
                             made.device->make_tensor(DType::kF32, {vocabulary, settings.hidden}));
  PERCHERON_ASSIGN_OR_RETURN(made.norm, made.device->make_tensor(DType::kF32, {settings.hidden}));
  made.device->copy_bytes(*made.stream, made.table.view().data(), values.data(),
                          made.table.view().bytes());
  made.device->copy_bytes(*made.stream, made.norm.view().data(), ones.data(),
                          made.norm.view().bytes());
  PERCHERON_RETURN_IF_ERROR(made.stream->wait_idle());
  PERCHERON_ASSIGN_OR_RETURN(
      made.drafter, make_drafter(*made.context, config, {made.table, made.table, made.norm, 1e-5},
                                 {}, DType::kF32, 1));
  PERCHERON_ASSIGN_OR_RETURN(
      made.buckets, GradientBuckets::make(*made.device, made.drafter->parameters(),
                                          static_cast<uint64_t>(settings.bucket_kib) << 10));
  made.drafter->set_gradient_listener(made.buckets.get());
  return made;
}

double ms_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double, std::milli>(end - begin).count();
}

/// As CPU trainers sum where they share memory or a device: copied, summed, copied back.
Status sum_by_host(Trainer& trainer, Collective& group) {
  Context& context = *trainer.context;
  size_t elements = 0;
  for (const auto& parameter : trainer.drafter->parameters()) {
    elements += static_cast<size_t>(parameter->gradient.view().elements());
  }
  trainer.host.resize(elements);
  const auto copy_all = [&](bool to_host) {
    float* next = trainer.host.data();
    for (const auto& parameter : trainer.drafter->parameters()) {
      const TensorView gradient = parameter->gradient.view();
      void* const from = to_host ? gradient.data() : next;
      void* const to = to_host ? static_cast<void*>(next) : gradient.data();
      context.device.copy_bytes(context.stream, to, from, gradient.bytes());
      next += gradient.elements();
    }
    return context.stream.wait_idle();
  };
  PERCHERON_RETURN_IF_ERROR(copy_all(true));
  PERCHERON_RETURN_IF_ERROR(group.all_reduce_sum(std::span(trainer.host)));
  return copy_all(false);
}

Status sum_buckets(Trainer& trainer, DeviceCollective& group) {
  for (size_t bucket = 0; bucket < trainer.buckets->count(); ++bucket) {
    (void)trainer.buckets->wait_for(bucket, 0, *trainer.sum_stream);
    group.all_reduce_sum(*trainer.sum_stream, trainer.buckets->at(bucket));
  }
  return group.wait_idle(*trainer.sum_stream);
}

/// What a step took: its passes alone, and what came after the last of them.
struct Step {
  double passes_ms = 0, exposed_ms = 0;
};

class Bench {
 public:
  explicit Bench(const Settings& settings) : settings_(settings) {}

  Status run() {
    DrafterChoice choice;
    choice.kind = DrafterKind::kDflash;
    choice.mask_token_id = 4;
    choice.layers = settings_.layers;
    choice.capture = {2, 15, 28};
    choice.block_size = 8;
    PERCHERON_ASSIGN_OR_RETURN(const DrafterConfig config,
                               derive_drafter_config(target_shape(settings_), choice));
    std::vector<DeviceId> devices;
    for (int rank = 0; rank < settings_.ranks; ++rank) {
      PERCHERON_ASSIGN_OR_RETURN(Trainer trainer, make_trainer(settings_, config, rank));
      devices.push_back(trainer.device->info().id);
      trainers_.push_back(std::move(trainer));
      features_.push_back(random_features(settings_, config, static_cast<uint64_t>(rank)));
    }
    PERCHERON_ASSIGN_OR_RETURN(device_group_, make_device_collectives(devices, {}));
    host_group_ = make_local_collectives(settings_.ranks);
    std::array<std::vector<Step>, kWays.size()> steps;
    for (int i = 0; i <= settings_.steps; ++i) {
      for (size_t way = 0; way < kWays.size(); ++way) {
        PERCHERON_ASSIGN_OR_RETURN(const Step step, time_step(kWays[way]));
        if (i > 0) steps[way].push_back(step);  // The first one warms.
      }
    }
    tell(steps);
    return ok_status();
  }

 private:
  Result<Step> time_step(Way way) {
    std::barrier start(settings_.ranks);
    std::vector<Clock::time_point> begins(trainers_.size()), passes(trainers_.size()),
        ends(trainers_.size());
    std::vector<Status> outcomes(trainers_.size());
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < trainers_.size(); ++rank) {
      threads.emplace_back([&, rank] {
        Trainer& trainer = trainers_[rank];
        trainer.device->bind_thread();
        start.arrive_and_wait();
        begins[rank] = Clock::now();
        std::shared_ptr<void> work = trainer.buckets->announce();
        std::future<Status> sums;
        if (way == Way::kDuring) {
          sums = std::async(std::launch::async, sum_buckets, std::ref(trainer),
                            std::ref(*device_group_[rank]));
        }
        trainer.buckets->begin_pass();
        outcomes[rank] =
            trainer.drafter->forward_backward(*trainer.context, features_[rank], loss()).status();
        trainer.buckets->complete_all(*trainer.stream);
        work.reset();
        passes[rank] = Clock::now();
        if (way == Way::kAfter) {
          start.arrive_and_wait();  // as a trainer is told when all have computed
          sums = std::async(std::launch::async, sum_buckets, std::ref(trainer),
                            std::ref(*device_group_[rank]));
        }
        Status summed;
        if (way == Way::kHost) {
          start.arrive_and_wait();
          summed = sum_by_host(trainer, *host_group_[rank]);
        } else {
          summed = sums.get();
        }
        if (outcomes[rank].ok()) outcomes[rank] = summed;
        ends[rank] = Clock::now();
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Status& outcome : outcomes) PERCHERON_RETURN_IF_ERROR(outcome);
    const auto last = std::ranges::max(passes);
    return Step{ms_between(std::ranges::min(begins), last),
                ms_between(last, std::ranges::max(ends))};
  }

  static LossConfig loss() {
    LossConfig loss;
    loss.hard_labels = true;
    loss.gamma = 4;
    loss.supervised_per_anchor = 8;
    return loss;
  }

  void tell(const std::array<std::vector<Step>, kWays.size()>& steps) const {
    const auto median = [](std::vector<Step> all, auto of) {
      std::ranges::sort(all, {}, of);
      return of(all[all.size() / 2]);
    };
    const auto exposed = [](const Step& step) { return step.exposed_ms; };
    const auto whole = [](const Step& step) { return step.passes_ms + step.exposed_ms; };
    uint64_t bytes = 0;
    for (const auto& parameter : trainers_[0].drafter->parameters()) {
      bytes += parameter->gradient.view().bytes();
    }
    fmt::print("{} trainers on {}, {} of gradients in {} buckets; medians of {} steps\n",
               settings_.ranks, settings_.kind, format_bytes(bytes), trainers_[0].buckets->count(),
               settings_.steps);
    constexpr std::array kNames = {"through host memory", "after the passes", "during the passes"};
    const double after = median(steps[1], exposed), after_whole = median(steps[1], whole);
    for (size_t way = 0; way < kWays.size(); ++way) {
      fmt::print("{:20} {:8.2f} ms left after the passes ({:.2f}), step {:8.1f} ms ({:.3f})\n",
                 kNames[way], median(steps[way], exposed), median(steps[way], exposed) / after,
                 median(steps[way], whole), median(steps[way], whole) / after_whole);
    }
  }

  const Settings settings_;
  std::vector<Trainer> trainers_;
  std::vector<Features> features_;
  DeviceCollectives device_group_;
  std::vector<std::unique_ptr<Collective>> host_group_;
};

}  // namespace
}  // namespace percheron

int main(int argc, char** argv) {
  CLI::App app{"Measures what is left of the sum of gradients when the backward passes end."};
  percheron::Settings settings;
  app.add_option("--device", settings.kind, "Kind of the trainers' devices: cpu, emulated, cuda")
      ->capture_default_str();
  app.add_option("--ranks", settings.ranks, "Trainers")->capture_default_str();
  app.add_option("--threads", settings.threads, "Cores of each")->capture_default_str();
  app.add_option("--hidden", settings.hidden, "Width, a multiple of 64")->capture_default_str();
  app.add_option("--layers", settings.layers, "Of the drafter")->capture_default_str();
  app.add_option("--tokens", settings.tokens, "Of each micro-batch")->capture_default_str();
  app.add_option("--bucket-kib", settings.bucket_kib, "Gradients of one exchange")
      ->capture_default_str();
  app.add_option("--steps", settings.steps, "Of each way")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  return percheron::exit_code(percheron::Bench(settings).run());
}
