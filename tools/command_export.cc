#include <fmt/format.h>

#include <map>
#include <memory>
#include <string>

#include "base/file_system.h"
#include "data/vocabulary_map.h"
#include "model/config.h"
#include "model/drafter_config.h"
#include "model/drafter_files.h"
#include "model/speculative.h"
#include "model/weights.h"
#include "tools/commands.h"
#include "tools/drafter_directory.h"
#include "tools/number_options.h"
#include "tools/printer.h"

namespace percheron {
namespace {

struct ExportOptions {
  std::string drafter, target, out, to = "specforge";
  int64_t draft_tokens = 0;
  bool embedding = false;
};

constexpr const char* kEmbedding = "embed_tokens.weight";

Result<std::vector<HostTensor>> copies_of(const DrafterFile& file) {
  std::vector<HostTensor> tensors;
  for (const ExpectedTensor& expected : drafter_tensors(file.config)) {
    const auto found = file.tensors.find(expected.name);
    if (found == file.tensors.end())
      return data_loss(fmt::format("{} lacks {}", file.file.path(), expected.name));
    const ConstTensorView& view = found->second;
    const std::byte* begin = static_cast<const std::byte*>(view.data());
    tensors.push_back({expected.name,
                       view.dtype(),
                       {view.shape().begin(), view.shape().end()},
                       {begin, begin + view.bytes()}});
  }
  return tensors;
}

/// The class that transformers gives a family, for a config.json that names none.
std::string usual_architecture(const std::string& model_type) {
  static const std::map<std::string, std::string> kClasses{{"llama", "LlamaForCausalLM"},
                                                           {"mistral", "MistralForCausalLM"},
                                                           {"qwen2", "Qwen2ForCausalLM"},
                                                           {"qwen3", "Qwen3ForCausalLM"}};
  const auto found = kClasses.find(model_type);
  return found == kClasses.end() ? "" : found->second;
}

Status print_serve_command(Printer& out, const char* name, ServingEngine engine,
                           const DrafterConfig& drafter, const ConfigExport& config,
                           const ExportOptions& options) {
  PERCHERON_ASSIGN_OR_RETURN(const std::string command,
                             serve_command(drafter, config.layout, options.out, options.target,
                                           engine, config.draft_tokens));
  out.print("\nServe it with {}:\n  {}\n", name, command);
  return out.status();
}

/// Refuses what the chosen layout or kind of drafter would ignore.
Status check_options(const ExportOptions& options, const DrafterConfig& drafter) {
  const bool dflash = drafter.kind == DrafterKind::kDflash;
  if (options.embedding && dflash) {
    return invalid_argument(
        "--with-embedding is for EAGLE-3: a DFlash drafter uses the target's embedding; leave it "
        "out");
  }
  if (options.embedding && options.to == "speculators") {
    return invalid_argument(
        "--with-embedding is for --to specforge: speculators' layout always holds the embedding; "
        "leave it out");
  }
  if (options.draft_tokens > 0 && dflash) {
    return invalid_argument(
        fmt::format("--draft-tokens is for EAGLE-3: this DFlash drafter drafts its block size - 1, "
                    "{}; leave it out",
                    default_draft_length(drafter)));
  }
  return ok_status();
}

/// A trailing slash would make NAME/.partial, which can't be renamed to NAME.
std::string without_trailing_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

Status export_drafter(ExportOptions options) {
  FileSystem& files = system_files();
  options.out = without_trailing_slashes(options.out);
  PERCHERON_RETURN_IF_ERROR(check_is_no_run(files, options.drafter));
  PERCHERON_ASSIGN_OR_RETURN(const ModelConfig target, read_model_config(files, options.target));
  PERCHERON_ASSIGN_OR_RETURN(const DrafterFile file, read_drafter(files, options.drafter, &target));
  PERCHERON_RETURN_IF_ERROR(check_options(options, file.config));
  if (files.exists(options.out)) {
    return failed_precondition(
        fmt::format("{} exists; remove it or choose another --out", options.out));
  }
  const bool speculators = options.to == "speculators";
  ConfigExport config;
  config.layout = speculators         ? DrafterLayout::kSpeculators
                  : options.embedding ? DrafterLayout::kSpecforgeHf
                                      : DrafterLayout::kOwn;
  config.target_path = options.target;
  config.target_architecture =
      target.architecture.empty() ? usual_architecture(target.model_type) : target.architecture;
  config.draft_tokens =
      options.draft_tokens > 0 ? options.draft_tokens : default_draft_length(file.config);
  PERCHERON_ASSIGN_OR_RETURN(WeightFiles weights, WeightFiles::open(files, options.target));
  if (has_manifest(files, options.drafter)) {
    PERCHERON_RETURN_IF_ERROR(weights.check(target));
    PERCHERON_RETURN_IF_ERROR(check_trained_for(files, options.drafter, weights.content_hash()));
  }
  if (!weights.contains(kEmbedding))
    return data_loss(fmt::format("{} has no {}", options.target, kEmbedding));
  const ConstTensorView embedding = weights.view(kEmbedding);
  PERCHERON_RETURN_IF_ERROR(check_embedding(file, embedding));
  PERCHERON_ASSIGN_OR_RETURN(std::vector<HostTensor> tensors, copies_of(file));
  PERCHERON_ASSIGN_OR_RETURN(
      EncodedDrafter encoded,
      encode_drafter(file.config, std::move(tensors), file.draft_ids, embedding, config));
  const auto counted_on = file.file.metadata().find(kDraftVocabularyDataHash);
  if (counted_on != file.file.metadata().end()) encoded.metadata.insert(*counted_on);
  const std::string partial = options.out + ".partial";
  PERCHERON_RETURN_IF_ERROR(files.remove_all(partial));
  PERCHERON_RETURN_IF_ERROR(files.create_directories(partial));
  PERCHERON_RETURN_IF_ERROR(write_drafter(files, partial, encoded));
  PERCHERON_RETURN_IF_ERROR(files.rename(partial, options.out));
  Printer out(stdout);
  out.print("{} tensors -> {}\n", encoded.tensors.size(), options.out);
  PERCHERON_RETURN_IF_ERROR(
      print_serve_command(out, "vLLM", ServingEngine::kVllm, file.config, config, options));
  if (speculators) return ok_status();  // SGLang does not read this layout.
  return print_serve_command(out, "SGLang", ServingEngine::kSglang, file.config, config, options);
}

}  // namespace

void add_export_command(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<ExportOptions>();
  CLI::App* command = app.add_subcommand(
      "export", "Write a drafter in the layout of a serving engine, with the command to serve it");
  command
      ->add_option("drafter", options->drafter,
                   "A checkpoint (runs/NAME/latest) or drafter directory in any layout")
      ->required();
  command
      ->add_option("--target", options->target,
                   "Hugging Face directory of the target it belongs to")
      ->required();
  command->add_option("--out", options->out, "Directory to make")->required();
  command->add_option("--to", options->to, "specforge (SGLang and vLLM) or speculators (vLLM)")
      ->check(CLI::IsMember({"specforge", "speculators"}))
      ->capture_default_str();
  command
      ->add_option("--draft-tokens", options->draft_tokens,
                   "Tokens an EAGLE-3 drafter drafts a round in the serve command; 0 = 3. Not for "
                   "DFlash, which drafts its block size - 1")
      ->check(in_range(0, kDraftLengthMax))
      ->capture_default_str();
  command->add_flag("--with-embedding", options->embedding,
                    "specforge: copy the target's embedding into the file (EAGLE-3)");
  command->callback(
      [options, &chosen] { chosen = [options] { return export_drafter(*options); }; });
}

}  // namespace percheron
