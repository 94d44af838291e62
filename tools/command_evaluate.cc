#include <unistd.h>

#include <memory>
#include <string>

#include "base/log.h"
#include "model/drafter_config.h"
#include "model/generation.h"
#include "tools/commands.h"
#include "tools/drafter_directory.h"
#include "tools/engine.h"
#include "tools/evaluation.h"
#include "tools/number_options.h"
#include "tools/printer.h"
#include "tools/prompts.h"

namespace percheron {
namespace {

struct EvaluateOptions {
  std::string target, drafter, prompts;
  EngineOptions engine;
  int64_t draft_length = 0;
  int64_t limit = 0;
  int64_t new_tokens = 200;
  double temperature = 0;
  uint64_t seed = 42;
  bool json = false;
};

void show_progress(const Evaluation& evaluation, size_t total) {
  if (isatty(STDERR_FILENO) == 0) return;
  Printer log(stderr);
  log.print("\r\033[K{} of {} prompts, acceptance length {:.3f}", evaluation.prompts.size(), total,
            evaluation.drafted().counts.acceptance_length());
  if (evaluation.prompts.size() == total) log.write("\r\033[K");
}

Status evaluate(const EvaluateOptions& options) {
  if (!options.drafter.empty()) {
    PERCHERON_RETURN_IF_ERROR(check_is_no_run(system_files(), options.drafter));
  }
  LazyTokenizer tokenizer(options.target);
  PERCHERON_ASSIGN_OR_RETURN(
      const auto prompts, read_prompts(system_files(), options.prompts, tokenizer, options.limit));
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::open(options.engine));
  PERCHERON_RETURN_IF_ERROR(engine->load(system_files(), options.target, options.drafter));
  if (!options.drafter.empty()) {
    const Status trained_for =
        check_trained_for(system_files(), options.drafter, engine->target().weights_hash());
    if (!trained_for.ok()) log_warning("{}", trained_for.message());
  }
  EvaluationOptions evaluation;
  evaluation.generate.new_tokens_max = options.new_tokens;
  evaluation.generate.temperature = options.temperature;
  evaluation.generate.seed = options.seed;
  evaluation.generate.stop_token_ids = engine->target().config().eos_token_ids;
  PERCHERON_ASSIGN_OR_RETURN(evaluation.thinking,
                             thinking_of_prompts(system_files(), options.prompts));
  const Drafter* drafter = engine->drafter();
  evaluation.draft_length = options.draft_length > 0 ? options.draft_length
                            : drafter != nullptr     ? default_draft_length(drafter->config())
                                                     : kChainDraftLength;
  const auto progress = [&](const Evaluation& so_far) { show_progress(so_far, prompts.size()); };
  PERCHERON_ASSIGN_OR_RETURN(const Evaluation result,
                             evaluate_prompts(engine->context(), engine->target(),
                                              engine->drafter(), prompts, evaluation, progress));
  Printer out(stdout);
  out.write(options.json ? evaluation_json(result).dump(2) + "\n" : evaluation_table(result));
  return out.status();
}

}  // namespace

void add_evaluate_command(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<EvaluateOptions>();
  CLI::App* command =
      app.add_subcommand("evaluate", "Measure what a drafter is worth on a file of prompts");
  command->add_option("--target", options->target, "Hugging Face directory of the target")
      ->required();
  command->add_option("--drafter", options->drafter,
                      "Drafter directory in any layout; without it the target alone and prompt "
                      "lookup are measured");
  command
      ->add_option("--prompts", options->prompts,
                   "Prompts: JSONL (turns, conversations, messages, prompt) or a token shard")
      ->required();
  command
      ->add_option("--draft-length", options->draft_length,
                   "Drafted tokens a round; 0 = 3 for EAGLE-3, block size - 1 for DFlash")
      ->check(in_range(0, kDraftLengthMax))
      ->capture_default_str();
  command->add_option("--limit", options->limit, "At most this many prompts; 0 = all")
      ->check(at_least(0))
      ->capture_default_str();
  command->add_option("--new-tokens", options->new_tokens, "At most this many tokens an answer")
      ->check(in_range(1, kNewTokensMax))
      ->capture_default_str();
  command->add_option("--temperature", options->temperature, "0 = greedy")
      ->check(at_least(0))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Of sampling, where the temperature is not 0")
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print JSON instead of a table");
  add_engine_options(*command, options->engine);
  command->callback([options, &chosen] { chosen = [options] { return evaluate(*options); }; });
}

}  // namespace percheron
