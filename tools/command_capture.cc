#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "actors/feature_capture.h"
#include "base/clock.h"
#include "base/file_system.h"
#include "base/units.h"
#include "tools/capture_line.h"
#include "tools/commands.h"
#include "tools/number_options.h"
#include "tools/printer.h"
#include "tools/run_config.h"

namespace percheron {
namespace {

struct CaptureCommandOptions {
  std::string config;
  std::vector<std::string> overrides;
  std::string out;
  std::string layout = "samples";
  std::string shard_bytes = "256MiB";
  std::string bytes_max;
  bool shard_bytes_given = false, last = false, partial = false, plan = false;
};

Result<CaptureOptions> capture_options(const CaptureCommandOptions& given) {
  CaptureOptions options;
  options.directory = given.out;
  options.layout = given.layout == "shards" ? CaptureLayout::kShards : CaptureLayout::kSamples;
  options.last = given.last ? CaptureLast::kAlways : CaptureLast::kWhereRead;
  PERCHERON_ASSIGN_OR_RETURN(options.shard_bytes, byte_count("--shard-bytes", given.shard_bytes));
  if (!given.bytes_max.empty()) {
    PERCHERON_ASSIGN_OR_RETURN(options.bytes_max, byte_count("--bytes-max", given.bytes_max));
  } else if (given.partial) {
    return invalid_argument("--partial captures what fits into --bytes-max: give both");
  }
  options.over_budget = given.partial ? OverBudget::kCaptureWhatFits : OverBudget::kRefuse;
  return options;
}

// What the disk of `directory`, or of the first directory above it that is there, has left.
Result<uint64_t> free_bytes_at(FileSystem& files, std::string directory) {
  while (!files.exists(directory)) {
    const size_t slash = directory.find_last_of('/');
    if (slash == std::string::npos) {
      directory = ".";
    } else {
      directory.resize(slash == 0 ? 1 : slash);
    }
  }
  return files.free_bytes(directory);
}

Status run_capture(const CaptureCommandOptions& given) {
  FileSystem& files = system_files();
  Printer out(stdout);
  PERCHERON_ASSIGN_OR_RETURN(const CaptureOptions options, capture_options(given));
  PERCHERON_ASSIGN_OR_RETURN(const proto::Run run,
                             read_run_config(files, given.config, given.overrides));
  PERCHERON_ASSIGN_OR_RETURN(const std::shared_ptr<const RunSetup> setup, resolve_run(run, files));
  PERCHERON_ASSIGN_OR_RETURN(CapturePlan plan, plan_capture(*setup, options));
  PERCHERON_ASSIGN_OR_RETURN(const uint64_t free, free_bytes_at(files, options.directory));
  out.write(plan.text(options));
  if (given.shard_bytes_given && options.layout == CaptureLayout::kSamples) {
    out.print("note        --shard-bytes is not used: it is for --layout shards\n");
  }
  out.print("disk        {} left for {}\n", format_bytes(free), options.directory);
  if (given.plan) return out.status();
  CaptureLine line(stdout, progress_style(stdout), system_clock());
  PERCHERON_ASSIGN_OR_RETURN(
      const CaptureSummary summary,
      capture_to_files(setup, options, std::move(plan), files, system_clock(), line));
  out.print("\n{}\ntrain with features.from=[{}]\n", format_capture_end(summary),
            options.directory);
  return out.status();
}

}  // namespace

void add_capture_command(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<CaptureCommandOptions>();
  CLI::App* command = app.add_subcommand(
      "capture", "Write the target's features of a run's training data to files");
  command
      ->add_option("-c,--config", options->config,
                   "The run's configuration in YAML: its target, data, captured states and type")
      ->required();
  command->add_option("overrides", options->overrides,
                      "Settings that replace the file's: section.key=value ...");
  command
      ->add_option("--out", options->out,
                   "Directory to write to: new, or an earlier capture of the same, which goes on")
      ->required();
  command
      ->add_option("--layout", options->layout,
                   "samples: hs_N.safetensors of one sample each, as vLLM and speculators write "
                   "them; shards: many samples a file")
      ->check(CLI::IsMember({"samples", "shards"}))
      ->capture_default_str();
  const CLI::Option* shard_bytes =
      command
          ->add_option("--shard-bytes", options->shard_bytes,
                       "Of a shard, about; each device gathers as much in host memory")
          ->capture_default_str();
  command->add_option("--bytes-max", options->bytes_max,
                      "Of all files, such as 200GiB; more is refused before anything is written");
  command->add_flag("--partial", options->partial,
                    "Instead of refusing, capture the first samples that fit into --bytes-max");
  command->add_flag("--last", options->last,
                    "Capture the last state before the final norm too where the run's loss does "
                    "not read it; peers expect it in the last slot");
  command->add_flag("--plan", options->plan, "Only say how many samples, files and bytes");
  command->footer(
      "A file appears whole or not at all: after Ctrl-C, a kill or a full disk the same command "
      "goes on, and keeps what is there. train reads the files with features.from: [DIR].");
  command->callback([options, shard_bytes, &chosen] {
    options->shard_bytes_given = shard_bytes->count() > 0;
    chosen = [options] { return run_capture(*options); };
  });
}

}  // namespace percheron
