// How many real tokens a second a drafter trains on: whole steps at the demo's size or beside any
// target, or forward and backward alone, on random weights and features that are ready in memory.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/random.h"
#include "bench/measurement.h"
#include "model/config.h"
#include "model/drafter_config.h"
#include "model/optimizer.h"
#include "tools/engine.h"

namespace percheron {
namespace {

// SmolLM2-135M; bench/pytorch/workload.py has the same sizes and documents.
constexpr int64_t kEagle3Vocabulary = 4096;
constexpr std::array<int64_t, 4> kLengths = {192, 182, 165,
                                             148};  // 687 real tokens in a budget of 768.
constexpr int64_t kPrompt = 40;                     // Not supervised, of each document.
constexpr int64_t kLengthMax = 1 << 20;
constexpr int kStepsOnCommand = 8;
constexpr double kLearningRate = 1e-4;

/// What a measured run contains.
enum class Work {
  kStep,             // forward, backward, clipping, AdamW and renewed weights
  kForwardBackward,  // without the optimizer
};

struct Settings {
  EngineOptions engine;
  std::vector<std::string> drafters = {"eagle3", "dflash"};
  std::string model;      // empty = the demo's
  int64_t length = 0;     // of one sequence, all supervised; 0 = the demo's documents
  int64_t ttt_steps = 0;  // 0 = 3 (the demo's size) or 7
  int64_t draft_vocab_size = -1;
  Work work = Work::kStep;
  double seconds = 4;
  bool on_command = false;
  ReportFormat format = ReportFormat::kText;

  bool demo_size() const { return model.empty(); }
};

ModelConfig demo_target() {
  ModelConfig config;
  config.model_type = "llama";
  config.hidden_size = 576;
  config.intermediate_size = 1536;
  config.num_hidden_layers = 30;
  config.num_attention_heads = 9;
  config.num_key_value_heads = 3;
  config.head_dim = 64;
  config.vocab_size = 49152;
  config.max_position_embeddings = 8192;
  config.rms_norm_eps = 1e-5;
  config.rope.theta = 100000;
  config.rope.original_max_position_embeddings = 8192;
  return config;
}

Result<ModelConfig> target_config(const Settings& settings) {
  if (settings.demo_size()) return demo_target();
  return read_model_config(system_files(), settings.model);
}

/// Rows of the head, 0 as the drafter's default: as deploy/demo trains it at the demo's size.
int64_t vocabulary_of(const Settings& settings, const std::string& drafter) {
  if (settings.draft_vocab_size >= 0) return settings.draft_vocab_size;
  return settings.demo_size() && drafter == "eagle3" ? kEagle3Vocabulary : 0;
}

/// The demo's drafters, or as their papers train them.
Result<DrafterConfig> drafter_config(const Settings& settings, const ModelConfig& target,
                                     const std::string& drafter) {
  DrafterChoice choice;
  choice.draft_vocab_size = vocabulary_of(settings, drafter);
  if (drafter == "eagle3" && settings.draft_vocab_size == 0) {
    choice.draft_vocab_size = target.vocab_size;
  }
  if (drafter == "dflash") {
    choice.kind = DrafterKind::kDflash;
    choice.mask_token_id = 4;
  }
  if (settings.demo_size() && drafter == "eagle3") {
    choice.capture = {2, 15, 27};
    choice.freeze_head = true;
  } else if (settings.demo_size()) {
    choice.layers = 2;
    choice.capture = {2, 15, 28};
    choice.block_size = 8;
  }
  return derive_drafter_config(target, choice);
}

LossConfig loss_config(const Settings& settings, const std::string& drafter) {
  LossConfig loss;
  if (drafter == "eagle3") {
    loss.ttt_steps = settings.ttt_steps;
    if (loss.ttt_steps == 0) loss.ttt_steps = settings.demo_size() ? 3 : 7;
  } else {
    loss.hard_labels = true;
    if (settings.demo_size()) {
      loss.gamma = 4;
      loss.supervised_per_anchor = 3;
    }
  }
  return loss;
}

/// `count` ids spread evenly; none for the whole vocabulary.
std::vector<int32_t> draft_ids(int64_t count, int64_t vocabulary) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count && count < vocabulary; ++i) {
    ids.push_back(static_cast<int32_t>(i * (vocabulary / count)));
  }
  return ids;
}

Result<Tensor> on_device(Context& context, DType dtype, std::initializer_list<int64_t> shape,
                         const void* values) {
  PERCHERON_ASSIGN_OR_RETURN(Tensor tensor, context.device.make_tensor(dtype, shape));
  context.device.copy_bytes(context.stream, tensor.view().data(), values, tensor.view().bytes());
  PERCHERON_RETURN_IF_ERROR(context.stream.wait_idle());
  return tensor;
}

/// Normal values in bf16, as a target stores them, the same 64 Ki repeated.
Result<Tensor> random_table(Context& context, int64_t rows, int64_t width, double deviation) {
  std::vector<uint16_t> values(static_cast<size_t>(rows * width));
  Random random(7);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = i < (1 << 16) ? bf16_from_float(static_cast<float>(deviation * random.normal()))
                              : values[i - (1 << 16)];
  }
  return on_device(context, DType::kBf16, {rows, width}, values.data());
}

/// Random documents over the draft vocabulary.
MicroBatch random_documents(const Settings& settings, int64_t draft_vocabulary,
                            int64_t vocabulary) {
  std::vector<int64_t> lengths(kLengths.begin(), kLengths.end());
  if (settings.length > 0) lengths = {settings.length};
  const int64_t prompt = settings.length > 0 ? 0 : kPrompt;
  const int64_t spread = vocabulary / draft_vocabulary;
  Random random(3);
  MicroBatch batch;
  batch.offsets.push_back(0);
  for (const int64_t length : lengths) {
    for (int64_t i = 0; i < length; ++i) {
      const uint64_t row = random.below(static_cast<uint64_t>(draft_vocabulary));
      batch.token_ids.push_back(static_cast<uint32_t>(row) * static_cast<uint32_t>(spread));
      batch.loss_mask.push_back(i >= prompt ? 1 : 0);
    }
    batch.sample_ids.push_back(batch.sample_ids.size());
    batch.offsets.push_back(static_cast<int32_t>(batch.token_ids.size()));
  }
  return batch;
}

/// Their random states of `dtype`.
Features random_features(MicroBatch documents, const DrafterConfig& config, int64_t hidden,
                         DType dtype) {
  Features result;
  result.dtype = dtype;
  result.slots = static_cast<int64_t>(config.capture.size()) + 1;
  result.hidden_size = hidden;
  result.has_last = true;
  result.batch = std::move(documents);
  const MicroBatch& batch = result.batch;
  Random random(5);
  for (const uint32_t id : batch.token_ids) result.top1.push_back(static_cast<int32_t>(id));
  const int64_t count = batch.tokens() * result.slots * hidden;
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

/// Says READY, waits for a line, and reports steps as the peers' step scripts do.
Status time_on_command(const std::string& drafter, double tokens,
                       const std::function<Status()>& step) {
  fmt::print("READY\n");
  std::fflush(stdout);
  if (std::string line; !std::getline(std::cin, line)) {
    return cancelled("standard input ended before a line said to begin");
  }
  PERCHERON_ASSIGN_OR_RETURN(Timings timings, time_runs({0, kStepsOnCommand}, step));
  std::ranges::sort(timings.wall_seconds);
  const double seconds = timings.wall_seconds[timings.wall_seconds.size() / 2];
  nlohmann::ordered_json line = {{"peer", "own"},
                                 {"method", drafter},
                                 {"seq", static_cast<int64_t>(tokens)},
                                 {"step_ms", seconds * 1e3},
                                 {"context_tokens_per_s", std::llround(tokens / seconds)}};
  fmt::print("{}\n", line.dump());
  return ok_status();
}

Measurement measurement_of(const Engine& engine, const DeviceInfo& info, const Settings& settings,
                           const std::string& drafter, int64_t head_rows) {
  const bool native = engine.dtype() == DType::kF32 || info.native_bf16;
  Measurement measurement;
  measurement.name = fmt::format("{}, head of {} rows{}", drafter, head_rows,
                                 settings.work == Work::kStep ? "" : ", no optimizer");
  measurement.labels = {{"case", "training"},
                        {"drafter", drafter},
                        {"dtype", settings.engine.dtype},
                        {"products", native ? settings.engine.dtype : "f32"},
                        {"device", info.description}};
  measurement.threads = info.threads;
  return measurement;
}

Status measure(Engine& engine, const Settings& settings, const std::string& name) {
  Context& context = engine.context();
  PERCHERON_ASSIGN_OR_RETURN(const ModelConfig target_shape, target_config(settings));
  PERCHERON_ASSIGN_OR_RETURN(const DrafterConfig config,
                             drafter_config(settings, target_shape, name));
  const int64_t hidden = target_shape.hidden_size, vocabulary = target_shape.vocab_size;
  PERCHERON_ASSIGN_OR_RETURN(const Tensor table, random_table(context, vocabulary, hidden, 0.05));
  const std::vector<float> ones(static_cast<size_t>(hidden), 1.0f);
  PERCHERON_ASSIGN_OR_RETURN(const Tensor norm,
                             on_device(context, DType::kF32, {hidden}, ones.data()));
  const TargetParts target = {table, table, norm, target_shape.rms_norm_eps};
  PERCHERON_ASSIGN_OR_RETURN(
      const std::unique_ptr<Drafter> drafter,
      make_drafter(context, config, target, draft_ids(config.draft_vocab_size, vocabulary),
                   engine.dtype(), 1));
  OptimizerConfig adamw;
  adamw.learning_rate = kLearningRate;
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<Optimizer> optimizer,
                             Optimizer::make(context, adamw, drafter->parameters()));
  const Features features =
      random_features(random_documents(settings, config.draft_vocab_size, vocabulary), config,
                      hidden, engine.dtype());
  const LossConfig loss = loss_config(settings, name);
  const auto step = [&] {
    return train_step(context, *drafter, *optimizer, features, loss, settings.work);
  };
  // Warms caches and the arena, and has the step recorded where it becomes a graph.
  for (int i = 0; i < 3; ++i) PERCHERON_RETURN_IF_ERROR(step());
  const uint64_t launched = context.stream.launches();
  PERCHERON_RETURN_IF_ERROR(step());
  const uint64_t launches = context.stream.launches() - launched;
  const auto tokens = static_cast<double>(features.batch.tokens());
  if (settings.on_command) return time_on_command(name, tokens, step);

  Measurement measurement =
      measurement_of(engine, context.device.info(), settings, name, config.draft_vocab_size);
  measurement.tokens = tokens;
  if (launches > 0) measurement.labels.emplace_back("launches", std::to_string(launches));
  PERCHERON_ASSIGN_OR_RETURN(measurement.timings, time_runs({settings.seconds, 3}, step));
  report(measurement, settings.format);
  return ok_status();
}

Status run(const Settings& settings) {
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::open(settings.engine));
  if (settings.format == ReportFormat::kText && !settings.on_command) {
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
  app.add_option("--model", settings.model,
                 "Directory with the config.json of another target, such as bench/model_configs/"
                 "Qwen3-8B: its drafters have default captures, whole blocks of 16 from up to 512 "
                 "anchors (dflash) or a trained head of 32000 rows (eagle3)");
  app.add_option("--seq", settings.length,
                 "Tokens of the one sequence, all supervised (default: the demo's documents)")
      ->check(CLI::Range(int64_t{64}, kLengthMax));
  app.add_option("--ttt-steps", settings.ttt_steps,
                 "EAGLE-3's steps of training-time test (default: 3; 7 with --model)")
      ->check(CLI::Range(1, 16));
  app.add_option("--draft-vocab-size", settings.draft_vocab_size,
                 "Rows of the head; 0 = the whole vocabulary (default: for eagle3 4096, or 32000 "
                 "with --model; for dflash 0)")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--seconds", settings.seconds, "How long each drafter is trained")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_flag_callback(
      "--no-optimizer", [&settings] { settings.work = Work::kForwardBackward; },
      "Measure forward and backward alone");
  app.add_flag_callback(
      "--no-graphs", [&settings] { settings.engine.graphs = false; },
      "Launch kernels one by one on devices that would launch a step as a graph");
  app.add_flag(
      "--on-command", settings.on_command,
      "Print READY after the warm-up, wait for a line on standard input, then time 8 steps "
      "and print a line of JSON, as tools/device_check --peers asks for");
  app.add_flag_callback(
      "--json", [&settings] { settings.format = ReportFormat::kJson; },
      "Print each drafter as one line of JSON");
}

}  // namespace
}  // namespace percheron

int main(int argc, char** argv) {
  CLI::App app{"Measures how many real tokens a second a drafter trains on."};
  percheron::Settings settings;
  percheron::add_options(app, settings);
  CLI11_PARSE(app, argc, argv);
  return percheron::exit_code(percheron::run(settings));
}
