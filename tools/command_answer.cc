#include <fmt/format.h>

#include <csignal>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "actors/answer_pool.h"
#include "base/file_system.h"
#include "tools/answer_lines.h"
#include "tools/commands.h"
#include "tools/number_options.h"
#include "tools/printer.h"

namespace percheron {
namespace {

struct AnswerCommandOptions {
  AnswerPoolOptions pool;
  std::vector<std::string> devices{"cpu:0"};
  std::string dtype = "bf16";
};

/// Prints answers as they come.
class LinePrinter : public AnswerReceiver {
 public:
  void answered(uint64_t id, Generated answer) override { out_.write(answer_line(id, answer)); }
  void refused(uint64_t id, const Status& why) override { out_.write(refusal_line(id, why)); }
  void failed(const Status& error) override { out_.write(error_line(error)); }
  void say(const std::string& line) { out_.write(line); }

 private:
  Printer out_{stdout};
};

Status answer_lines(AnswerCommandOptions& options, LinePrinter& printer) {
  for (const std::string& name : options.devices) {
    PERCHERON_ASSIGN_OR_RETURN(const DeviceId id, parse_device_id(name));
    options.pool.devices.push_back(id);
  }
  options.pool.dtype = options.dtype == "bf16" ? DType::kBf16 : DType::kF32;
  PERCHERON_ASSIGN_OR_RETURN(
      const std::unique_ptr<AnswerPool> pool,
      AnswerPool::start(system_files(), system_clock(), options.pool, printer));
  printer.say(ready_line(pool->weights_hash(), pool->context_max(),
                         options.pool.generate.slots * static_cast<int64_t>(pool->devices())));
  for (std::string line; std::getline(std::cin, line);) {
    PERCHERON_ASSIGN_OR_RETURN(GenerationRequest request, parse_request(line));
    PERCHERON_RETURN_IF_ERROR(pool->post(std::move(request)));
  }
  // Who asked has all answers, knows what failed, or is gone.
  pool->cancel();
  (void)pool->wait();
  return ok_status();
}

Status run_answer(AnswerCommandOptions options) {
  std::signal(SIGINT, SIG_IGN);   // Ctrl-C is for who asks; it closes our input.
  std::signal(SIGPIPE, SIG_IGN);  // So does its death.
  LinePrinter printer;
  const Status status = answer_lines(options, printer);
  // Who asks prints it: a line on standard error would double it.
  if (!status.ok()) printer.say(error_line(status));
  return ok_status();
}

}  // namespace

void add_answer_command(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<AnswerCommandOptions>();
  CLI::App* command = app.add_subcommand(
      "answer", "Answer prompts of token ids, one JSON object a line, for another program");
  command->group("");  // Not for people: `regenerate` starts it.
  GenerateOptions& generate = options->pool.generate;
  command->add_option("--target", options->pool.target, "Hugging Face directory")->required();
  command->add_option("--devices", options->devices, "Such as cpu:0,cpu:1")->delimiter(',');
  command->add_option("--threads", options->pool.threads, "Cores of each CPU device; 0 = all")
      ->check(in_range(0, 1024));
  command->add_option("--dtype", options->dtype, "bf16 or f32")
      ->check(CLI::IsMember({"bf16", "f32"}));
  command->add_option("--new-tokens", generate.new_tokens_max, "Of an answer at most")
      ->check(in_range(1, kNewTokensMax));
  command->add_option("--context", generate.context_max, "Of prompt and answer; 0 = positions")
      ->check(at_least(0));
  command->add_option("--temperature", generate.temperature, "0 = greedy")->check(at_least(0));
  command->add_option("--seed", generate.seed, "Of sampling");
  command->add_option("--slots", generate.slots, "Answers in flight of a device")
      ->check(in_range(1, 4096));
  command->add_option("--stop-token-ids", generate.stop_token_ids, "Instead of the target's own")
      ->delimiter(',');
  command->callback([options, &chosen] { chosen = [options] { return run_answer(*options); }; });
}

}  // namespace percheron
