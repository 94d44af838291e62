// speculative_bench MODEL_DIRECTORY [NEW_TOKENS] [THREADS] [DRAFTER_DIRECTORY]: one sequence, bf16:
// plain decoding, then what a round of drafting and verifying costs by draft length. Without a
// drafter directory, fresh EAGLE-3 and DFlash drafters: their costs are real, their acceptance is
// not.

#include <fmt/format.h>

#include <cstdlib>
#include <string>

#include "base/random.h"
#include "model/drafter_files.h"
#include "model/speculative.h"

namespace percheron {
namespace {

constexpr int64_t kPromptTokens = 64;

struct Settings {
  std::string model, drafter;
  int64_t new_tokens = 64;
  int threads = 0;
};

std::vector<int32_t> random_prompt(int64_t vocab_size) {
  Random random(1);
  std::vector<int32_t> prompt;
  for (int64_t i = 0; i < kPromptTokens; ++i) {
    prompt.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(vocab_size))));
  }
  return prompt;
}

void report(const std::string& what, const SpeculativeResult& result) {
  AcceptanceCounts counts;
  for (const Round& round : result.rounds) counts.add(round);
  const double rounds = static_cast<double>(result.rounds.size());
  const double seconds = result.draft_seconds + result.verify_seconds;
  fmt::print(
      "  {:<18} {:>7.1f} tokens/s, acceptance length {:.3f}, a round: draft {:>6.2f} ms, "
      "verify {:>6.2f} ms\n",
      what, static_cast<double>(result.tokens.size() - 1) / seconds, counts.acceptance_length(),
      1e3 * result.draft_seconds / rounds, 1e3 * result.verify_seconds / rounds);
}

Status measure(Context& context, Target& target, Drafter* drafter, const Settings& settings) {
  const std::vector<int32_t> prompt = random_prompt(target.config().vocab_size);
  GenerateOptions options;
  options.new_tokens_max = settings.new_tokens;
  if (drafter == nullptr) {
    for (int i = 0; i < 2; ++i) {  // The first run warms caches and the arena.
      PERCHERON_ASSIGN_OR_RETURN(const SpeculativeResult plain,
                                 decode(context, target, nullptr, prompt, options, 0));
      if (i == 1) report("plain", plain);
    }
    return ok_status();
  }
  const bool eagle3 = drafter->config().kind == DrafterKind::kEagle3;
  PERCHERON_ASSIGN_OR_RETURN(
      const std::unique_ptr<DraftSource> source,
      make_draft_source(context, *drafter, kPromptTokens + settings.new_tokens + 32));
  for (const int64_t drafts : {1, 2, 3, 5, 7}) {
    PERCHERON_ASSIGN_OR_RETURN(const SpeculativeResult result,
                               decode(context, target, source.get(), prompt, options, drafts));
    report(fmt::format("{} k={}", eagle3 ? "EAGLE-3" : "DFlash", drafts), result);
  }
  return ok_status();
}

TargetParts parts_of(const Target& target) {
  return {target.embedding(), target.head(), target.final_norm(), target.config().rms_norm_eps};
}

Status measure_drafter(Context& context, const DrafterConfig& config, const DrafterFile* file,
                       const Settings& settings) {
  TargetOptions options;
  options.capture = config.capture;
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<Target> target,
                             Target::load(system_files(), settings.model, context, options));
  std::vector<int32_t> ids;
  for (int32_t i = 0;
       config.draft_vocab_size < config.body.vocab_size && i < config.draft_vocab_size; ++i) {
    ids.push_back(i);
  }
  Result<std::unique_ptr<Drafter>> drafter =
      file != nullptr ? make_drafter_from_file(context, *file, parts_of(*target), DType::kBf16)
                      : make_drafter(context, config, parts_of(*target), ids, DType::kBf16, 1);
  PERCHERON_RETURN_IF_ERROR(drafter.status());
  PERCHERON_RETURN_IF_ERROR(measure(context, *target, nullptr, settings));
  return measure(context, *target, drafter->get(), settings);
}

Status run(const Settings& settings) {
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device,
                             open_device({DeviceKind::kCpu, 0}, {.threads = settings.threads}));
  device->bind_thread();
  const std::unique_ptr<Stream> stream = device->make_stream();
  Arena arena(*device);
  Context context{*device, *stream, arena};
  fmt::print("{}, {} threads\n", device->info().description, device->info().threads);
  PERCHERON_ASSIGN_OR_RETURN(const ModelConfig model,
                             read_model_config(system_files(), settings.model));
  if (!settings.drafter.empty()) {
    PERCHERON_ASSIGN_OR_RETURN(const DrafterFile file,
                               read_drafter(system_files(), settings.drafter, &model));
    return measure_drafter(context, file.config, &file, settings);
  }
  DrafterChoice eagle3, dflash;
  eagle3.draft_vocab_size = std::min<int64_t>(4096, model.vocab_size);
  dflash.kind = DrafterKind::kDflash;
  dflash.layers = 2;
  dflash.block_size = 8;
  dflash.mask_token_id = 4;
  for (const DrafterChoice& choice : {eagle3, dflash}) {
    PERCHERON_ASSIGN_OR_RETURN(const DrafterConfig config, derive_drafter_config(model, choice));
    PERCHERON_RETURN_IF_ERROR(measure_drafter(context, config, nullptr, settings));
  }
  return ok_status();
}

}  // namespace
}  // namespace percheron

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(
        stderr,
        "usage: speculative_bench MODEL_DIRECTORY [NEW_TOKENS] [THREADS] [DRAFTER_DIRECTORY]\n");
    return 2;
  }
  percheron::Settings settings;
  settings.model = argv[1];
  if (argc > 2) settings.new_tokens = std::max(2, std::atoi(argv[2]));
  if (argc > 3) settings.threads = std::atoi(argv[3]);
  if (argc > 4) settings.drafter = argv[4];
  const percheron::Status status = percheron::run(settings);
  if (status.ok()) return 0;
  fmt::print(stderr, "{}\n", status.message());
  return 1;
}
