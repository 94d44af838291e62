// How many real tokens a second the target runs: forward passes of one long sequence, equal short
// ones and mixed lengths, and generation with continuous batching; and what captures to host memory
// cost.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/random.h"
#include "bench/capture_to_host.h"
#include "bench/measurement.h"
#include "model/generation.h"
#include "tools/engine.h"

namespace percheron {
namespace {

using Lengths = std::vector<int64_t>;

constexpr int64_t kShapeNumberMax = 1 << 16;
constexpr int64_t kWarmUpTokens = 3;  // of generation, for each prompt

/// How far a forward pass goes.
enum class Extent {
  kCapturedLayers,  // to the last captured layer
  kAllLayers,       // through all layers, no head
  kTop1,            // through all layers and the head's top-1
};

struct Settings {
  EngineOptions engine;
  std::string model;
  std::vector<std::string> cases = {"forward", "generation"};
  std::vector<std::string> shapes = {"1x1024", "8x256", "512+310+228+172+139+106+78+52"};
  std::vector<std::string> extents = {"captured_layers", "all_layers", "top1"};
  std::string prompts;
  int64_t slots = 64, new_tokens = 200;
  double seconds = 4;
  ReportFormat format = ReportFormat::kText;
};

struct Prompts {
  std::vector<std::vector<int32_t>> ids;
  std::vector<int64_t> stop_token_ids;
};

Extent extent_named(const std::string& name) {
  if (name == "captured_layers") return Extent::kCapturedLayers;
  return name == "all_layers" ? Extent::kAllLayers : Extent::kTop1;
}

/// "8x256": eight sequences of 256 tokens; "512+310": one of each length.
Result<Lengths> parse_shape(const std::string& shape) {
  const bool equal = shape.find('x') != std::string::npos;
  Lengths numbers;
  std::istringstream parts(shape);
  bool valid = true;
  for (std::string part; std::getline(parts, part, equal ? 'x' : '+');) {
    const char* end = part.data() + part.size();
    numbers.push_back(0);
    const auto [stop, error] = std::from_chars(part.data(), end, numbers.back());
    valid = valid && error == std::errc() && stop == end && numbers.back() > 0 &&
            numbers.back() <= kShapeNumberMax;
  }
  if (!valid || numbers.empty() || (equal && numbers.size() != 2)) {
    return invalid_argument(fmt::format(
        "--shape {} is neither COUNTxLENGTH nor lengths joined by +, numbers from 1 to {}", shape,
        kShapeNumberMax));
  }
  return equal ? Lengths(static_cast<size_t>(numbers[0]), numbers[1]) : numbers;
}

PackedSequences random_rows(const Lengths& lengths, int64_t vocab_size) {
  Random random(1);
  PackedSequences rows;
  rows.offsets.push_back(0);
  for (const int64_t length : lengths) {
    for (int64_t i = 0; i < length; ++i) {
      rows.token_ids.push_back(
          static_cast<int32_t>(random.below(static_cast<uint64_t>(vocab_size))));
    }
    rows.offsets.push_back(static_cast<int32_t>(rows.token_ids.size()));
  }
  return rows;
}

/// Prompts of 64 random tokens that nothing stops.
Prompts random_prompts(int64_t count, int64_t vocab_size) {
  Prompts prompts;
  for (int64_t i = 0; i < count; ++i) {
    prompts.ids.push_back(random_rows({64}, vocab_size).token_ids);
    prompts.ids.back()[0] = static_cast<int32_t>(i % vocab_size);
  }
  return prompts;
}

/// Reads {"prompts": [[id, ...], ...], "stop_token_ids": [id, ...]}.
Result<Prompts> read_prompts(const std::string& path) {
  PERCHERON_ASSIGN_OR_RETURN(const std::string text, system_files().read_text(path));
  try {
    const nlohmann::json file = nlohmann::json::parse(text);
    return Prompts{file.at("prompts"), file.at("stop_token_ids")};
  } catch (const nlohmann::json::exception& error) {
    return data_loss(fmt::format("{}: {}", path, error.what()));
  }
}

/// As --dtype spells it.
std::string spelling(DType dtype) { return dtype == DType::kBf16 ? "bf16" : "f32"; }

/// The measurement but for its tokens and timings.
Measurement described(const Context& context, const Target& target, std::string name,
                      Labels labels) {
  const DeviceInfo& info = context.device.info();
  labels.emplace_back("dtype", spelling(target.options().compute_dtype));
  labels.emplace_back("products", spelling(target.compute_dtype()));
  labels.emplace_back("device", info.description);
  return {std::move(name), std::move(labels), info.threads, 0, {}};
}

Status measure_forward(Context& context, Target& target, const Settings& settings,
                       const std::string& shape, const std::string& extent_name) {
  PERCHERON_ASSIGN_OR_RETURN(const Lengths lengths, parse_shape(shape));
  const Extent extent = extent_named(extent_name);
  const PackedSequences rows = random_rows(lengths, target.config().vocab_size);
  const int64_t count = static_cast<int64_t>(rows.token_ids.size());
  const int64_t hidden = target.config().hidden_size;
  const auto pass = [&]() -> Status {
    Arena::Scope scope(context.arena);
    const TensorView captured =
        context.arena.take(target.options().compute_dtype,
                           {count, static_cast<int64_t>(target.options().capture.size()), hidden});
    TensorView last;
    if (extent != Extent::kCapturedLayers) last = context.arena.take(DType::kF32, {count, hidden});
    PERCHERON_RETURN_IF_ERROR(target.forward(context, rows, nullptr, captured, last));
    if (extent != Extent::kTop1) return ok_status();
    target.top1(context, last, context.arena.take(DType::kI32, {count}));
    return context.stream.wait_idle();
  };
  PERCHERON_RETURN_IF_ERROR(pass());  // Warms caches and the arena.
  Measurement measurement =
      described(context, target, fmt::format("forward {}, {}", shape, extent_name),
                {{"case", "forward"}, {"shape", shape}, {"extent", extent_name}});
  measurement.tokens = static_cast<double>(count);
  PERCHERON_ASSIGN_OR_RETURN(measurement.timings, time_runs({settings.seconds, 3}, pass));
  report(measurement, settings.format);
  return ok_status();
}

Status measure_capture(Context& context, Target& target, const Settings& settings,
                       const std::string& shape) {
  PERCHERON_ASSIGN_OR_RETURN(const Lengths lengths, parse_shape(shape));
  const PackedSequences rows = random_rows(lengths, target.config().vocab_size);
  MicroBatch batch;
  batch.token_ids.assign(rows.token_ids.begin(), rows.token_ids.end());
  batch.loss_mask.assign(rows.token_ids.size(), 1);
  batch.offsets = rows.offsets;
  batch.sample_ids.assign(lengths.size(), 0);
  PERCHERON_ASSIGN_OR_RETURN(const CaptureToHost times,
                             time_capture_to_host(context, target, batch, settings.seconds));
  const double tokens = static_cast<double>(batch.tokens()) * times.passes;
  const std::string ratio = fmt::format("{:.4f}", times.ratio());
  Measurement measurement =
      described(context, target, fmt::format("capture to host {}, {} of without", shape, ratio),
                {{"case", "capture"}, {"shape", shape}, {"of_without", ratio}});
  measurement.tokens = tokens;
  measurement.timings = times.to_host;
  report(measurement, settings.format);
  if (settings.format == ReportFormat::kJson) return ok_status();
  measurement.name = fmt::format("captures left on the device {}", shape);
  measurement.timings = times.on_device;
  report(measurement, settings.format);
  return ok_status();
}

Status measure_generation(Context& context, Target& target, const Settings& settings,
                          const Prompts& prompts, int64_t slots) {
  GenerateOptions options;
  options.stop_token_ids = prompts.stop_token_ids;
  options.slots = slots;
  options.new_tokens_max = std::min(kWarmUpTokens, settings.new_tokens);
  PERCHERON_RETURN_IF_ERROR(generate(context, target, prompts.ids, options).status());
  options.new_tokens_max = settings.new_tokens;
  Measurement measurement =
      described(context, target,
                fmt::format("generation, {} prompts, {} slots, at most {} tokens",
                            prompts.ids.size(), slots, settings.new_tokens),
                {{"case", "generation"}});
  const auto run = [&]() -> Status {
    PERCHERON_ASSIGN_OR_RETURN(const std::vector<Generated> answers,
                               generate(context, target, prompts.ids, options));
    measurement.tokens = 0;
    for (const Generated& answer : answers) {
      measurement.tokens += static_cast<double>(answer.tokens.size());
    }
    return ok_status();
  };
  PERCHERON_ASSIGN_OR_RETURN(measurement.timings, time_runs({settings.seconds, 1}, run));
  report(measurement, settings.format);
  return ok_status();
}

Status generation_cases(Context& context, Target& target, const Settings& settings) {
  if (!settings.prompts.empty()) {
    PERCHERON_ASSIGN_OR_RETURN(const Prompts prompts, read_prompts(settings.prompts));
    return measure_generation(context, target, settings, prompts, settings.slots);
  }
  for (const int64_t slots : {int64_t{1}, settings.slots}) {
    const Prompts prompts = random_prompts(slots, target.config().vocab_size);
    PERCHERON_RETURN_IF_ERROR(measure_generation(context, target, settings, prompts, slots));
  }
  return ok_status();
}

Status run(const Settings& settings) {
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::open(settings.engine));
  Context& context = engine->context();
  PERCHERON_ASSIGN_OR_RETURN(const ModelConfig config,
                             read_model_config(system_files(), settings.model));
  const int64_t layers = config.num_hidden_layers;
  TargetOptions options;
  options.compute_dtype = engine->dtype();
  options.head = std::ranges::count(settings.cases, "generation") > 0 ||
                 std::ranges::count(settings.extents, "top1") > 0;
  options.capture = {std::min<int64_t>(2, layers), layers / 2, std::max<int64_t>(0, layers - 3)};
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<Target> target,
                             Target::load(system_files(), settings.model, context, options));
  if (settings.format == ReportFormat::kText) {
    fmt::print("{}, {} threads, {}{}\n", context.device.info().description,
               context.device.info().threads, settings.engine.dtype,
               target->compute_dtype() == engine->dtype() ? "" : " (products in f32)");
  }
  for (const std::string& name : settings.cases) {
    if (name == "generation") {
      PERCHERON_RETURN_IF_ERROR(generation_cases(context, *target, settings));
      continue;
    }
    for (const std::string& shape : settings.shapes) {
      if (name == "capture") {
        PERCHERON_RETURN_IF_ERROR(measure_capture(context, *target, settings, shape));
        continue;
      }
      for (const std::string& extent : settings.extents) {
        PERCHERON_RETURN_IF_ERROR(measure_forward(context, *target, settings, shape, extent));
      }
    }
  }
  return ok_status();
}

void add_options(CLI::App& app, Settings& settings) {
  app.add_option("model", settings.model, "Hugging Face directory of the target")->required();
  add_engine_options(app, settings.engine);
  app.add_option("--case", settings.cases, "What to measure: forward, generation, capture")
      ->check(CLI::IsMember({"forward", "generation", "capture"}))
      ->allow_extra_args(false)
      ->capture_default_str();
  app.add_option("--shape", settings.shapes, "Sequences: COUNTxLENGTH, or lengths joined by +")
      ->allow_extra_args(false)
      ->capture_default_str();
  app.add_option("--extent", settings.extents, "How far a forward pass goes")
      ->check(CLI::IsMember({"captured_layers", "all_layers", "top1"}))
      ->allow_extra_args(false)
      ->capture_default_str();
  app.add_option("--prompts", settings.prompts,
                 "Prompts of generation, a file of {\"prompts\": [[id, ...], ...], "
                 "\"stop_token_ids\": [id, ...]}; without it, random ones");
  app.add_option("--slots", settings.slots, "Sequences in flight while generating")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--new-tokens", settings.new_tokens, "Most new tokens of a prompt")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--seconds", settings.seconds, "How long each case is repeated")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_flag_callback(
      "--json", [&settings] { settings.format = ReportFormat::kJson; },
      "Print each case as one line of JSON");
}

}  // namespace
}  // namespace percheron

int main(int argc, char** argv) {
  CLI::App app{"Measures how many real tokens a second the target runs."};
  percheron::Settings settings;
  percheron::add_options(app, settings);
  CLI11_PARSE(app, argc, argv);
  return percheron::exit_code(percheron::run(settings));
}
