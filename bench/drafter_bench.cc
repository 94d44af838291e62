// One training step of a drafter at the demo's size on random weights and features, without the
// optimizer. Real tokens a second. Threads: PERCHERON_THREADS, else 2.

#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdlib>
#include <memory>

#include "base/random.h"
#include "model/drafter.h"

namespace percheron {
namespace {

constexpr int64_t kHidden = 576, kVocabulary = 49152, kDraftVocabulary = 4096;
constexpr int64_t kDocuments = 4, kLength = 172, kPrompt = 40;

class BenchDevice {
 public:
  BenchDevice() {
    const char* threads = std::getenv("PERCHERON_THREADS");
    device_ = std::move(open_device({DeviceKind::kCpu, 0},
                                    {.threads = threads != nullptr ? std::atoi(threads) : 2}))
                  .value();
    device_->bind_thread();
    stream_ = device_->make_stream();
    arena_ = std::make_unique<Arena>(*device_);
  }
  Context context() { return {*device_, *stream_, *arena_}; }

  /// Normal values, the same 64 Ki repeated.
  Tensor random_matrix(int64_t rows, int64_t columns, double deviation) {
    Tensor tensor = std::move(device_->make_tensor(DType::kF32, {rows, columns})).value();
    Random random(7);
    float* values = tensor.view().as<float>();
    for (int64_t i = 0; i < rows * columns; ++i) {
      values[i] =
          i < (1 << 16) ? static_cast<float>(deviation * random.normal()) : values[i - (1 << 16)];
    }
    return tensor;
  }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Arena> arena_;
};

ModelConfig body(int64_t layers) {
  ModelConfig config;
  config.model_type = "llama";
  config.hidden_size = kHidden;
  config.intermediate_size = 1536;
  config.num_hidden_layers = layers;
  config.num_attention_heads = 9;
  config.num_key_value_heads = 3;
  config.head_dim = 64;
  config.vocab_size = kVocabulary;
  config.max_position_embeddings = 8192;
  config.rope.theta = 100000;
  config.rope.original_max_position_embeddings = 8192;
  return config;
}

std::vector<int32_t> draft_ids(int64_t count) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count && count < kVocabulary; ++i) {
    ids.push_back(static_cast<int32_t>(i * (kVocabulary / count)));
  }
  return ids;
}

/// Chats of 172 tokens whose first 40 are the prompt: 688 tokens, 528 supervised, all tokens in the
/// draft vocabulary.
Features features(int64_t states) {
  Features result;
  result.dtype = DType::kBf16;
  result.slots = states + 1;
  result.hidden_size = kHidden;
  result.has_last = true;
  Random random(3);
  MicroBatch& batch = result.batch;
  batch.offsets.push_back(0);
  for (int64_t d = 0; d < kDocuments; ++d) {
    for (int64_t i = 0; i < kLength; ++i) {
      const uint64_t step = kVocabulary / kDraftVocabulary;
      batch.token_ids.push_back(static_cast<uint32_t>(random.below(kDraftVocabulary) * step));
      batch.loss_mask.push_back(i >= kPrompt ? 1 : 0);
    }
    batch.offsets.push_back(static_cast<int32_t>(batch.token_ids.size()));
    batch.sample_ids.push_back(static_cast<uint64_t>(d));
  }
  for (const uint32_t id : batch.token_ids) result.top1.push_back(static_cast<int32_t>(id));
  const int64_t count = batch.tokens() * result.slots * kHidden;
  result.hidden_states.resize(static_cast<size_t>(count) * 2);
  auto* values = reinterpret_cast<uint16_t*>(result.hidden_states.data());
  for (int64_t i = 0; i < count; ++i) {
    values[i] = bf16_from_float(static_cast<float>(random.uniform() - 0.5));
  }
  return result;
}

void run_steps(benchmark::State& state, const DrafterConfig& config, const LossConfig& loss) {
  BenchDevice device;
  Context context = device.context();
  const Tensor embedding = device.random_matrix(kVocabulary, kHidden, 0.05);
  const Tensor norm = device.random_matrix(1, kHidden, 1.0);
  const TargetParts target = {embedding, embedding, norm.view().reshaped({kHidden}), 1e-5};
  const std::unique_ptr<Drafter> drafter =
      std::move(make_drafter(context, config, target, draft_ids(config.draft_vocab_size),
                             DType::kBf16, 1))
          .value();
  const Features batch = features(static_cast<int64_t>(config.capture.size()));
  for (auto _ : state) {
    const Result<StepSums> sums = drafter->forward_backward(context, batch, loss);
    PERCHERON_CHECK(sums.ok() && std::isfinite(sums.value().loss), "the step failed");
  }
  state.SetItemsProcessed(state.iterations() * batch.batch.tokens());
  state.counters["arena_MiB"] = static_cast<double>(context.arena.bytes_peak()) / (1 << 20);
}

void eagle3_step(benchmark::State& state) {
  DrafterConfig config;
  config.kind = DrafterKind::kEagle3;
  config.body = body(1);
  config.target_hidden_size = kHidden;
  config.capture = {2, 15, 27};
  config.draft_vocab_size = kDraftVocabulary;
  config.freeze_head = true;
  LossConfig loss;
  loss.ttt_steps = state.range(0);
  run_steps(state, config, loss);
}

void dflash_step(benchmark::State& state) {
  DrafterConfig config;
  config.kind = DrafterKind::kDflash;
  config.body = body(2);
  config.body.qk_norm = true;
  config.target_hidden_size = kHidden;
  config.capture = {2, 15, 28};
  config.block_size = 8;
  config.mask_token_id = 4;
  config.draft_vocab_size = state.range(0);
  LossConfig loss;
  loss.hard_labels = true;
  loss.gamma = 4;
  loss.supervised_per_anchor = 3;
  run_steps(state, config, loss);
}

BENCHMARK(eagle3_step)->Arg(3)->Arg(7)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK(dflash_step)->Arg(4096)->Arg(49152)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace percheron

BENCHMARK_MAIN();
