// target_bench MODEL_DIRECTORY [REPEATS] [THREADS]: how many tokens a second the target runs, best
// and median of the repeats, for one long sequence, equal short ones and mixed lengths; f32 and
// bf16; to the last captured layer or through all layers and the head's top-1. Then generation with
// 64 slots.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>

#include "base/random.h"
#include "kernels/device.h"
#include "model/generation.h"
#include "model/target.h"

namespace percheron {
namespace {

using Lengths = std::vector<int64_t>;

struct Taken {
  double wall_seconds = 0, cpu_seconds = 0;
};

Taken time_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  const std::clock_t cpu_begin = std::clock();
  work();
  return {std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(),
          static_cast<double>(std::clock() - cpu_begin) / CLOCKS_PER_SEC};
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

void report(const std::string& what, double tokens, std::vector<Taken> taken) {
  std::ranges::sort(taken, {}, &Taken::wall_seconds);
  const double best = taken.front().wall_seconds, median = taken[taken.size() / 2].wall_seconds;
  const double cpu = std::ranges::min(taken, {}, &Taken::cpu_seconds).cpu_seconds;
  fmt::print("  {:<46} best {:>8.1f} tokens/s, median {:>8.1f}, by processor time {:>8.1f}\n", what,
             tokens / best, tokens / median, tokens / cpu);
  std::fflush(stdout);
}

enum class Extent { kCapturedLayers, kTop1 };

Status measure(Context& context, Target& target, const std::string& name, const Lengths& lengths,
               Extent extent, int repeats) {
  const PackedSequences rows = random_rows(lengths, target.config().vocab_size);
  const int64_t count = static_cast<int64_t>(rows.token_ids.size());
  const int64_t hidden = target.config().hidden_size;
  Status status;
  std::vector<Taken> taken;
  for (int i = 0; i <= repeats && status.ok(); ++i) {
    Arena::Scope scope(context.arena);
    const TensorView captured = context.arena.take(
        DType::kBf16, {count, static_cast<int64_t>(target.options().capture.size()), hidden});
    TensorView last, ids;
    if (extent == Extent::kTop1) {
      last = context.arena.take(DType::kF32, {count, hidden});
      ids = context.arena.take(DType::kI32, {count});
    }
    const Taken pass = time_of([&] {
      status = target.forward(context, rows, nullptr, captured, last);
      if (!status.ok() || extent != Extent::kTop1) return;
      target.top1(context, last, ids);
      status = context.stream.wait_idle();
    });
    if (i > 0) taken.push_back(pass);  // The first pass warms caches and the arena.
  }
  if (status.ok()) {
    report(fmt::format("{}{}", name, extent == Extent::kTop1 ? ", all layers and top-1" : ""),
           static_cast<double>(count), taken);
  }
  return status;
}

Status measure_generation(Context& context, Target& target, int64_t slots, int64_t new_tokens) {
  std::vector<std::vector<int32_t>> prompts;
  for (int64_t i = 0; i < slots; ++i) {
    prompts.push_back(random_rows({64}, target.config().vocab_size).token_ids);
    prompts.back()[0] = static_cast<int32_t>(i);
  }
  GenerateOptions options;
  options.new_tokens_max = new_tokens;
  options.slots = slots;
  Status status;
  const Taken taken =
      time_of([&] { status = generate(context, target, prompts, options).status(); });
  report(fmt::format("generation, {} slots, 64 + {} tokens", slots, new_tokens),
         static_cast<double>(slots * new_tokens), {taken});
  return status;
}

Status run(const std::string& directory, int repeats, int threads) {
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device,
                             open_device({DeviceKind::kCpu, 0}, {.threads = threads}));
  device->bind_thread();
  const std::unique_ptr<Stream> stream = device->make_stream();
  fmt::print("{}, {} threads\n", device->info().description, device->info().threads);
  const std::vector<std::pair<std::string, Lengths>> shapes = {
      {"1 x 1024", {1024}},
      {"8 x 256", Lengths(8, 256)},
      {"512 310 228 172 139 106 78 52", {512, 310, 228, 172, 139, 106, 78, 52}}};
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    Arena arena(*device);
    Context context{*device, *stream, arena};
    PERCHERON_ASSIGN_OR_RETURN(const ModelConfig config,
                               read_model_config(system_files(), directory));
    const int64_t layers = config.num_hidden_layers;
    TargetOptions options;
    options.compute_dtype = dtype;
    options.capture = {std::min<int64_t>(2, layers), layers / 2, std::max<int64_t>(0, layers - 3)};
    PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<Target> target,
                               Target::load(system_files(), directory, context, options));
    fmt::print("{}{}\n", dtype_name(dtype),
               target->compute_dtype() == dtype ? "" : " (products in f32)");
    for (const auto& [name, lengths] : shapes) {
      for (const Extent extent : {Extent::kCapturedLayers, Extent::kTop1}) {
        PERCHERON_RETURN_IF_ERROR(measure(context, *target, name, lengths, extent, repeats));
      }
    }
    PERCHERON_RETURN_IF_ERROR(measure_generation(context, *target, 1, 64));
    PERCHERON_RETURN_IF_ERROR(measure_generation(context, *target, 64, 64));
  }
  return ok_status();
}

}  // namespace
}  // namespace percheron

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: target_bench MODEL_DIRECTORY [REPEATS] [THREADS]\n");
    return 2;
  }
  const int repeats = argc > 2 ? std::max(1, std::atoi(argv[2])) : 5;
  const int threads = argc > 3 ? std::max(1, std::atoi(argv[3])) : 2;
  const percheron::Status status = percheron::run(argv[1], repeats, threads);
  if (!status.ok()) fmt::print(stderr, "{}\n", status.message());
  return status.ok() ? 0 : 1;
}
