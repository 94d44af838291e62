// How many real tokens a second a drafter trains on: whole steps at the demo's size, or forward and
// backward alone, on random weights and features that are ready in memory.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "base/random.h"
#include "bench/measurement.h"
#include "model/drafter_config.h"
#include "model/optimizer.h"
#include "tools/engine.h"

namespace percheron {
namespace {

// SmolLM2-135M; bench/pytorch/workload.py has the same sizes and documents.
constexpr int64_t kHidden = 576, kVocabulary = 49152, kEagle3Vocabulary = 4096;
constexpr std::array<int64_t, 4> kLengths = {192, 182, 165,
                                             148};  // 687 real tokens in a budget of 768.
constexpr int64_t kPrompt = 40;                     // Not supervised, of each document.
constexpr double kLearningRate = 1e-4;

/// What a measured run contains.
enum class Work {
  kStep,             // forward, backward, clipping, AdamW and renewed weights
  kForwardBackward,  // without the optimizer
};

struct Settings {
  EngineOptions engine;
  std::vector<std::string> drafters = {"eagle3", "dflash"};
  int64_t ttt_steps = 3;
  int64_t draft_vocab_size = -1;
  Work work = Work::kStep;
  double seconds = 4;
  ReportFormat format = ReportFormat::kText;
};

ModelConfig target_config() {
  ModelConfig config;
  config.model_type = "llama";
  config.hidden_size = kHidden;
  config.intermediate_size = 1536;
  config.num_hidden_layers = 30;
  config.num_attention_heads = 9;
  config.num_key_value_heads = 3;
  config.head_dim = 64;
  config.vocab_size = kVocabulary;
  config.max_position_embeddings = 8192;
  config.rms_norm_eps = 1e-5;
  config.rope.theta = 100000;
  config.rope.original_max_position_embeddings = 8192;
  return config;
}

/// Rows of the head: as deploy/demo trains the drafter unless --draft-vocab-size says otherwise.
int64_t vocabulary_of(const Settings& settings, const std::string& drafter) {
  if (settings.draft_vocab_size > 0) return settings.draft_vocab_size;
  const bool whole = settings.draft_vocab_size == 0 || drafter == "dflash";
  return whole ? kVocabulary : kEagle3Vocabulary;
}

Result<DrafterConfig> drafter_config(const Settings& settings, const std::string& drafter) {
  DrafterChoice choice;
  choice.draft_vocab_size = vocabulary_of(settings, drafter);
  if (drafter == "eagle3") {
    choice.capture = {2, 15, 27};
    choice.freeze_head = true;
  } else {
    choice.kind = DrafterKind::kDflash;
    choice.layers = 2;
    choice.capture = {2, 15, 28};
    choice.block_size = 8;
    choice.mask_token_id = 4;
  }
  return derive_drafter_config(target_config(), choice);
}

LossConfig loss_config(const Settings& settings, const std::string& drafter) {
  LossConfig loss;
  if (drafter == "eagle3") {
    loss.ttt_steps = settings.ttt_steps;
  } else {
    loss.hard_labels = true;
    loss.gamma = 4;
    loss.supervised_per_anchor = 3;
  }
  return loss;
}

/// `count` ids spread evenly; none for the whole vocabulary.
std::vector<int32_t> draft_ids(int64_t count) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count && count < kVocabulary; ++i) {
    ids.push_back(static_cast<int32_t>(i * (kVocabulary / count)));
  }
  return ids;
}

/// Normal values in bf16, as a target stores them, the same 64 Ki repeated.
Result<Tensor> random_table(Device& device, int64_t rows, double deviation) {
  PERCHERON_ASSIGN_OR_RETURN(Tensor tensor, device.make_tensor(DType::kBf16, {rows, kHidden}));
  Random random(7);
  auto* values = tensor.view().as<uint16_t>();
  for (int64_t i = 0; i < rows * kHidden; ++i) {
    values[i] = i < (1 << 16) ? bf16_from_float(static_cast<float>(deviation * random.normal()))
                              : values[i - (1 << 16)];
  }
  return tensor;
}

/// Random documents over the draft vocabulary with random states of `dtype`.
Features random_features(const DrafterConfig& config, DType dtype) {
  Features result;
  result.dtype = dtype;
  result.slots = static_cast<int64_t>(config.capture.size()) + 1;
  result.hidden_size = kHidden;
  result.has_last = true;
  Random random(3);
  MicroBatch& batch = result.batch;
  batch.offsets.push_back(0);
  const int64_t spread = kVocabulary / config.draft_vocab_size;
  for (const int64_t length : kLengths) {
    for (int64_t i = 0; i < length; ++i) {
      const uint64_t row = random.below(static_cast<uint64_t>(config.draft_vocab_size));
      batch.token_ids.push_back(static_cast<uint32_t>(row) * static_cast<uint32_t>(spread));
      batch.loss_mask.push_back(i >= kPrompt ? 1 : 0);
    }
    batch.sample_ids.push_back(batch.sample_ids.size());
    batch.offsets.push_back(static_cast<int32_t>(batch.token_ids.size()));
  }
  for (const uint32_t id : batch.token_ids) result.top1.push_back(static_cast<int32_t>(id));
  const int64_t count = batch.tokens() * result.slots * kHidden;
  result.hidden_states.resize(static_cast<size_t>(count) * dtype_bytes(dtype));
  for (int64_t i = 0; i < count; ++i) {
    const float value = static_cast<float>(random.uniform() - 0.5);
    if (dtype == DType::kF32) {
      reinterpret_cast<float*>(result.hidden_states.data())[i] = value;
    } else {
      reinterpret_cast<uint16_t*>(result.hidden_states.data())[i] = bf16_from_float(value);
    }
  }
  return result;
}

Status train_step(Context& context, Drafter& drafter, Optimizer& optimizer,
                  const Features& features, const LossConfig& loss, Work work) {
  PERCHERON_ASSIGN_OR_RETURN(const StepSums sums,
                             drafter.forward_backward(context, features, loss));
  if (!std::isfinite(sums.loss)) return internal_error("the loss is not finite");
  if (work == Work::kForwardBackward) return context.stream.wait_idle();
  PERCHERON_RETURN_IF_ERROR(optimizer.step(context, sums.weight, 1).status());
  drafter.weights_changed(context);
  return context.stream.wait_idle();
}

Status measure(Engine& engine, const Settings& settings, const std::string& name) {
  Context& context = engine.context();
  PERCHERON_ASSIGN_OR_RETURN(const DrafterConfig config, drafter_config(settings, name));
  PERCHERON_ASSIGN_OR_RETURN(const Tensor table, random_table(context.device, kVocabulary, 0.05));
  PERCHERON_ASSIGN_OR_RETURN(const Tensor norm, context.device.make_tensor(DType::kF32, {kHidden}));
  std::fill_n(norm.view().as<float>(), kHidden, 1.0f);
  const TargetParts target = {table, table, norm, 1e-5};
  PERCHERON_ASSIGN_OR_RETURN(
      const std::unique_ptr<Drafter> drafter,
      make_drafter(context, config, target, draft_ids(config.draft_vocab_size), engine.dtype(), 1));
  OptimizerConfig adamw;
  adamw.learning_rate = kLearningRate;
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<Optimizer> optimizer,
                             Optimizer::make(context, adamw, drafter->parameters()));
  const Features features = random_features(config, engine.dtype());
  const LossConfig loss = loss_config(settings, name);
  const auto step = [&] {
    return train_step(context, *drafter, *optimizer, features, loss, settings.work);
  };
  for (int i = 0; i < 2; ++i) PERCHERON_RETURN_IF_ERROR(step());  // Warms caches and the arena.

  const DeviceInfo& info = context.device.info();
  const bool native = engine.dtype() == DType::kF32 || info.native_bf16;
  Measurement measurement;
  measurement.name = fmt::format("{}, head of {} rows{}", name, config.draft_vocab_size,
                                 settings.work == Work::kStep ? "" : ", no optimizer");
  measurement.labels = {{"case", "training"},
                        {"drafter", name},
                        {"dtype", settings.engine.dtype},
                        {"products", native ? settings.engine.dtype : "f32"},
                        {"device", info.description}};
  measurement.threads = info.threads;
  measurement.tokens = static_cast<double>(features.batch.tokens());
  PERCHERON_ASSIGN_OR_RETURN(measurement.timings, time_runs({settings.seconds, 3}, step));
  report(measurement, settings.format);
  return ok_status();
}

Status run(const Settings& settings) {
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::open(settings.engine));
  if (settings.format == ReportFormat::kText) {
    const DeviceInfo& info = engine->context().device.info();
    fmt::print("{}, {} threads, {}\n", info.description, info.threads, settings.engine.dtype);
  }
  for (const std::string& drafter : settings.drafters) {
    PERCHERON_RETURN_IF_ERROR(measure(*engine, settings, drafter));
  }
  return ok_status();
}

void add_options(CLI::App& app, Settings& settings) {
  add_engine_options(app, settings.engine);
  app.add_option("--drafter", settings.drafters, "What to train: eagle3, dflash")
      ->check(CLI::IsMember({"eagle3", "dflash"}))
      ->allow_extra_args(false)
      ->capture_default_str();
  app.add_option("--ttt-steps", settings.ttt_steps, "EAGLE-3's steps of training-time test")
      ->check(CLI::Range(1, 16))
      ->capture_default_str();
  app.add_option("--draft-vocab-size", settings.draft_vocab_size,
                 "Rows of the head; 0 = the whole vocabulary (default: 4096 for eagle3, 0 for "
                 "dflash, as the demo's)")
      ->check(CLI::Range(int64_t{0}, kVocabulary));
  app.add_option("--seconds", settings.seconds, "How long each drafter is trained")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_flag_callback(
      "--no-optimizer", [&settings] { settings.work = Work::kForwardBackward; },
      "Measure forward and backward alone");
  app.add_flag_callback(
      "--json", [&settings] { settings.format = ReportFormat::kJson; },
      "Print each drafter as one line of JSON");
}

}  // namespace
}  // namespace percheron

int main(int argc, char** argv) {
  CLI::App app{"Measures how many real tokens a second a drafter of the demo's size trains on."};
  percheron::Settings settings;
  percheron::add_options(app, settings);
  CLI11_PARSE(app, argc, argv);
  return percheron::exit_code(percheron::run(settings));
}
