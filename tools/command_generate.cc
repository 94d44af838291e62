#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/file_system.h"
#include "model/generation.h"
#include "tools/commands.h"
#include "tools/engine.h"
#include "tools/number_options.h"
#include "tools/printer.h"
#include "tools/prompts.h"

namespace percheron {
namespace {

constexpr double kProgressSeconds = 10;

struct GenerateCommandOptions {
  std::string target, prompt, prompts, out;
  EngineOptions engine;
  GenerateOptions generate;
  int64_t limit = 0;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Result<std::vector<std::vector<int32_t>>> prompts_of(const GenerateCommandOptions& options,
                                                     LazyTokenizer& tokenizer) {
  if (options.prompt.empty() == options.prompts.empty()) {
    return invalid_argument("give either --prompt TEXT or --prompts FILE");
  }
  if (!options.prompts.empty())
    return read_prompts(system_files(), options.prompts, tokenizer, options.limit);
  PERCHERON_ASSIGN_OR_RETURN(Tokenizer* const encoder, tokenizer.get());
  PERCHERON_ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                             encoder->encode_user_message(options.prompt));
  return std::vector<std::vector<int32_t>>{std::move(ids)};
}

Status write_answers(const GenerateCommandOptions& options, LazyTokenizer& tokenizer,
                     const std::vector<Generated>& answers) {
  PERCHERON_ASSIGN_OR_RETURN(Tokenizer* const decoder, tokenizer.get());
  std::string lines;
  Printer out(stdout);
  for (size_t i = 0; i < answers.size(); ++i) {
    std::vector<int32_t> shown = answers[i].tokens;
    if (answers[i].stopped) shown.pop_back();
    PERCHERON_ASSIGN_OR_RETURN(const Decoded decoded, decoder->decode(shown));
    if (options.out.empty()) {
      out.print("{}{}\n", answers.size() > 1 ? fmt::format("--- {}\n", i) : "", decoded.text);
      continue;
    }
    lines += nlohmann::ordered_json{{"index", i},
                                    {"text", decoded.text},
                                    {"token_ids", answers[i].tokens},
                                    {"complete", answers[i].stopped}}
                 .dump() +
             "\n";
  }
  return options.out.empty() ? out.status()
                             : write_text_atomically(system_files(), options.out, lines);
}

/// Before the target is loaded, since hours of answers would be lost. Leaves nothing behind.
Status check_can_write(const std::string& path) {
  FileSystem& files = system_files();
  if (path.empty()) return ok_status();
  if (files.list(path).ok()) return invalid_argument(path + " is a directory, not a file");
  const std::string probe = path + ".new";  // as write_text_atomically() names it
  PERCHERON_RETURN_IF_ERROR(files.create(probe).status());
  return files.remove_all(probe);
}

Status run_generate(const GenerateCommandOptions& options) {
  PERCHERON_RETURN_IF_ERROR(check_can_write(options.out).with_context("--out"));
  LazyTokenizer tokenizer(options.target);
  PERCHERON_ASSIGN_OR_RETURN(const auto prompts, prompts_of(options, tokenizer));
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::open(options.engine));
  PERCHERON_RETURN_IF_ERROR(engine->load(system_files(), options.target, ""));
  GenerateOptions generate_options = options.generate;
  generate_options.stop_token_ids = engine->target().config().eos_token_ids;
  Printer log(stderr);
  const auto start = std::chrono::steady_clock::now();
  double said = 0;
  int64_t done = 0;
  const auto progress = [&](int64_t new_tokens) {
    done += new_tokens;
    const double seconds = seconds_since(start);
    if (seconds - said < kProgressSeconds) return;
    said = seconds;
    log.print("{} tokens, {:.0f} tokens/s\n", done, static_cast<double>(done) / seconds);
  };
  PERCHERON_ASSIGN_OR_RETURN(
      const std::vector<Generated> answers,
      generate(engine->context(), engine->target(), prompts, generate_options, progress));
  int64_t tokens = 0;
  for (const Generated& answer : answers) tokens += static_cast<int64_t>(answer.tokens.size());
  const double seconds = seconds_since(start);
  PERCHERON_RETURN_IF_ERROR(write_answers(options, tokenizer, answers));
  log.print("{} answers, {} tokens in {:.1f} s, {:.0f} tokens/s\n", answers.size(), tokens, seconds,
            static_cast<double>(tokens) / seconds);
  return ok_status();
}

}  // namespace

void add_generate_command(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<GenerateCommandOptions>();
  CLI::App* command = app.add_subcommand("generate", "Let a target answer prompts, batched");
  command->add_option("--target", options->target, "Hugging Face directory of the target")
      ->required();
  command->add_option("--prompt", options->prompt, "One user message");
  command->add_option("--prompts", options->prompts,
                      "Prompts: JSONL (turns, conversations, messages, prompt) or a token shard");
  command->add_option("--out", options->out, "Write JSONL here instead of text to standard output");
  command
      ->add_option("--new-tokens", options->generate.new_tokens_max,
                   "At most this many tokens an answer")
      ->check(in_range(1, kNewTokensMax))
      ->capture_default_str();
  command->add_option("--temperature", options->generate.temperature, "0 = greedy")
      ->check(at_least(0))
      ->capture_default_str();
  command
      ->add_option("--seed", options->generate.seed, "Of sampling, where the temperature is not 0")
      ->capture_default_str();
  command->add_option("--slots", options->generate.slots, "Answers in flight at once")
      ->check(in_range(1, 4096))
      ->capture_default_str();
  command->add_option("--limit", options->limit, "At most this many prompts; 0 = all")
      ->check(at_least(0))
      ->capture_default_str();
  add_engine_options(*command, options->engine);
  command->callback([options, &chosen] { chosen = [options] { return run_generate(*options); }; });
}

}  // namespace percheron
