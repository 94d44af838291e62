#include <fmt/format.h>

#include <array>
#include <memory>
#include <string>

#include "base/file_system.h"
#include "base/json.h"
#include "base/units.h"
#include "data/safetensors.h"
#include "data/token_shard.h"
#include "model/config.h"
#include "model/drafter_config.h"
#include "model/drafter_files.h"
#include "model/weights.h"
#include "tools/commands.h"
#include "tools/device_lines.h"
#include "tools/drafter_directory.h"
#include "tools/printer.h"

namespace percheron {
namespace {

void print_tensors(Printer& out, const SafetensorsFile& file) {
  size_t bytes = 0;
  for (const auto& [name, view] : file.tensors()) bytes += view.bytes();
  out.print("{}: {} tensors, {}\n", file.path(), file.tensors().size(), format_bytes(bytes));
  for (const auto& [key, value] : file.metadata()) out.print("  metadata {}: {}\n", key, value);
  for (const auto& [name, view] : file.tensors()) out.print("  {:<52} {}\n", name, describe(view));
}

void print_shard(Printer& out, const TokenDataset& data) {
  out.print(
      "{} samples, {} tokens, {} supervised ({:.1f}%), {} samples without supervision, vocabulary "
      "{}\n",
      format_count(static_cast<uint64_t>(data.samples())),
      format_count(static_cast<uint64_t>(data.total_tokens())),
      format_count(static_cast<uint64_t>(data.supervised_tokens())),
      100.0 * static_cast<double>(data.supervised_tokens()) /
          static_cast<double>(data.total_tokens()),
      data.samples_without_supervision(), data.passport().vocab_size);
}

void print_target(Printer& out, const ModelConfig& config) {
  out.print("target: {} ({}), {} layers, hidden {}, heads {}/{} of {}, MLP {}, vocabulary {}{}\n",
            config.model_type, config.dtype, config.num_hidden_layers, config.hidden_size,
            config.num_attention_heads, config.num_key_value_heads, config.head_dim,
            config.intermediate_size, config.vocab_size,
            config.tie_word_embeddings ? ", tied head" : "");
  out.print("  rope theta {}, rms eps {}, positions {}\n", config.rope.theta, config.rms_norm_eps,
            config.max_position_embeddings);
}

void print_drafter(Printer& out, const DrafterFile& file) {
  const DrafterConfig& config = file.config;
  const bool eagle = config.kind == DrafterKind::kEagle3;
  out.print("drafter: {}, {} layers, hidden {}, reads the states after target layers {} (of {})\n",
            eagle ? "EAGLE-3" : "DFlash", config.body.num_hidden_layers, config.body.hidden_size,
            fmt::join(config.capture, ", "), config.num_target_layers);
  if (eagle) {
    out.print(
        "  draft vocabulary {} of {}, norm_before_residual {}, norm_before_fc {}, norm_output {}\n",
        config.draft_vocab_size, config.body.vocab_size, config.norm_before_residual,
        config.norm_before_fc, config.norm_output);
  } else {
    out.print("  block {} (drafts {} tokens a round), mask token {}\n", config.block_size,
              config.block_size - 1, config.mask_token_id);
  }
}

Status inspect_file(FileSystem& files, const std::string& path) {
  Printer out(stdout);
  PERCHERON_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::open(files, path));
  print_tensors(out, file);
  const auto format = file.metadata().find("format");
  if (format == file.metadata().end() || format->second != kTokenShardFormat) return out.status();
  const std::array<std::string, 1> paths{path};
  PERCHERON_ASSIGN_OR_RETURN(const TokenDataset data, TokenDataset::open(files, paths));
  print_shard(out, data);
  return out.status();
}

/// Whether a run and the preparation of its data would take the directory.
Status check_trainable(FileSystem& files, const std::string& path, const ModelConfig& config) {
  PERCHERON_ASSIGN_OR_RETURN(WeightFiles weights, WeightFiles::open(files, path));
  PERCHERON_RETURN_IF_ERROR(weights.check(config));
  const std::string tokenizer = join_path(path, "tokenizer.json");
  PERCHERON_ASSIGN_OR_RETURN(const std::string text, files.read_text(tokenizer));
  return parse_json(text, tokenizer).status();
}

/// A model directory: a target if its family is known, else a drafter.
Status inspect_directory(FileSystem& files, const std::string& path) {
  Printer out(stdout);
  const Result<ModelConfig> target = read_model_config(files, path);
  const Result<DrafterFile> drafter = read_drafter(files, path, nullptr);
  if (drafter.ok()) {
    print_drafter(out, *drafter);
    print_tensors(out, drafter->file);
    return out.status();
  }
  if (!target.ok()) {
    return invalid_argument(
        fmt::format("{} is neither a target nor a drafter.\n  as a target: {}\n  as a drafter: {}",
                    path, target.status().message(), drafter.status().message()));
  }
  print_target(out, *target);
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.list(path));
  for (const std::string& name : names) {
    if (!name.ends_with(".safetensors")) continue;
    PERCHERON_ASSIGN_OR_RETURN(const SafetensorsFile file,
                               SafetensorsFile::open(files, join_path(path, name)));
    print_tensors(out, file);
  }
  const Status trainable = check_trainable(files, path, *target);
  if (!trainable.ok()) return trainable.with_context("can be trained for: no");
  out.print("can be trained for: yes\n");
  return out.status();
}

Status print_devices(bool json) {
  Printer out(stdout);
  if (json) {
    out.print("{}\n", devices_json().dump(2));
    return out.status();
  }
  for (const std::string& line : device_lines(open_nvml_monitor())) out.print("{}\n", line);
  return out.status();
}

Status inspect(const std::string& path) {
  if (path.empty()) return invalid_argument("give a file, a directory, or --devices");
  FileSystem& files = system_files();
  if (!files.exists(path)) return not_found(fmt::format("{} does not exist", path));
  PERCHERON_RETURN_IF_ERROR(check_is_no_run(files, path));
  if (files.exists(join_path(path, "config.json"))) return inspect_directory(files, path);
  if (files.list(path).ok()) {
    return invalid_argument(
        fmt::format("{} has no config.json, so it is neither a target's nor a drafter's directory; "
                    "give one of its .safetensors files to see that file",
                    path));
  }
  return inspect_file(files, path);
}

}  // namespace

void add_inspect_command(CLI::App& app, Command& chosen) {
  auto path = std::make_shared<std::string>();
  auto devices = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand(
      "inspect", "Say what a safetensors file, model or drafter directory holds, or this machine");
  command->footer(
      "Of a target's directory it says last whether a drafter can be trained for it: its weights "
      "and its tokenizer.json are read. The exit code is 1 when not.");
  auto json = std::make_shared<bool>(false);
  CLI::Option* file =
      command->add_option("path", *path, "FILE.safetensors, or a directory with a config.json");
  command
      ->add_flag("--devices", *devices,
                 "Instead: the devices cpu:0 and cuda:N of this machine, and what NVIDIA's driver "
                 "says of its cards: load, memory, power, temperature, errors")
      ->excludes(file);
  command
      ->add_flag("--json", *json, "With --devices: the devices as JSON, without the cards' state")
      ->needs("--devices");
  command->callback([path, devices, json, &chosen] {
    chosen = [path, devices, json] { return *devices ? print_devices(*json) : inspect(*path); };
  });
}

}  // namespace percheron
