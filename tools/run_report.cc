#include "tools/run_report.h"

#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <memory>

#include "actors/step_trainer.h"
#include "base/log.h"
#include "model/drafter_config.h"
#include "tools/evaluation.h"
#include "tools/lookup_walk.h"
#include "tools/prompts.h"
#include "tools/report.h"
#include "tools/run_config.h"

namespace percheron {
namespace {

using Json = nlohmann::ordered_json;
using Prompts = std::vector<std::vector<int32_t>>;

constexpr int64_t kUntrainedPrompts = 3;  // an untrained drafter needs a call for every token
constexpr int64_t kUntrainedNewTokens = 64;
constexpr size_t kShownPrompts = 3;

std::string option_of(DType dtype) { return dtype == DType::kBf16 ? "bf16" : "f32"; }

EvaluationOptions evaluation_options(const RunSetup& setup, const Target& target) {
  EvaluationOptions options;
  options.generate.new_tokens_max = setup.config.evaluate().new_tokens_max();
  options.generate.stop_token_ids = target.config().eos_token_ids;
  options.draft_length = default_draft_length(setup.drafter);
  options.thinking = thinking_of_dataset(*setup.data.held_out);
  return options;
}

Result<Evaluation> evaluate_untrained(Engine& engine, const std::shared_ptr<const RunSetup>& setup,
                                      FileSystem& files, Prompts prompts) {
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<DrafterTrainer> untrained,
                             DrafterTrainer::make(engine.context(), files, setup, engine.target()));
  prompts.resize(std::min<size_t>(prompts.size(), kUntrainedPrompts));
  EvaluationOptions options = evaluation_options(*setup, engine.target());
  options.generate.new_tokens_max = std::min(options.generate.new_tokens_max, kUntrainedNewTokens);
  options.with_lookup = false;
  return evaluate_prompts(engine.context(), engine.target(), &untrained->drafter(), prompts,
                          options);
}

/// The last point of each evaluated draft length, by its number.
Json last_walks(const MetricsHistory& history) {
  Json walks = Json::object();
  const std::string prefix = "eval/acceptance_length_walk_";
  for (const std::string& name : history.names(prefix)) {
    const Series series = history.series(name, name);
    if (!series.points.empty()) walks[name.substr(prefix.size())] = series.points.back().second;
  }
  return walks;
}

/// The configuration as it was given.
Json settings_json(const proto::Run& run) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string text;
  const auto status = google::protobuf::util::MessageToJsonString(run, &text, options);
  PERCHERON_CHECK(status.ok(), "a configuration can always be printed");
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

Json figures_of(const RunSetup& setup, const RunSummary& summary, const Evaluation& evaluation,
                const Evaluation& untrained, const MetricsHistory& history) {
  const Json measured = evaluation_json(evaluation);
  const double plain = evaluation.plain().tokens_per_second();
  const double drafted = evaluation.drafted().tokens_per_second();
  Json figures{{"acceptance_length", measured["acceptance_length"]},
               {"acceptance_length_walk", last_walks(history)},
               {"acceptance_length_untrained", untrained.drafted().counts.acceptance_length()},
               {"acceptance_length_lookup", evaluation.looked_up().counts.acceptance_length()},
               {"accepted_per_position", measured["accepted_per_position"]},
               {"draft_length", default_draft_length(setup.drafter)},
               {"tokens_per_second", drafted},
               {"tokens_per_second_without_drafter", plain},
               {"speedup", plain > 0 ? drafted / plain : 0.0},
               {"steps", summary.steps},
               {"tokens", summary.tokens},
               {"seconds", summary.seconds},
               {"feature_seconds", summary.feature_seconds},
               {"train_seconds", summary.train_seconds},
               {"pool_bytes_peak", summary.pool_bytes_peak},
               {"draft_coverage", setup.draft_coverage},
               {"draft_coverage_held_out", setup.held_out_coverage}};
  figures["decoding"] = {
      {"target alone", measured["plain"]},
      {"drafter", measured["drafter"]},
      {"drafter, answers that do not loop", measured["drafter_without_loops"]},
      {"prompt lookup", measured["lookup"]},
      {"prompt lookup, answers that do not loop", measured["lookup_without_loops"]},
      {"untrained drafter", evaluation_json(untrained)["drafter"]}};
  figures["evaluation"] = measured;
  figures["counters"] = Json::object();
  for (const auto& [name, count] : summary.counters) figures["counters"][name] = count;
  figures["settings"] = settings_json(setup.config);
  return figures;
}

/// The answer's pieces with who brought them: the prefill's token, then accepted drafts and a bonus
/// token a round.
std::vector<ShownPiece> shown_answer(const SpeculativeResult& result, const Decoded& decoded) {
  std::vector<ShownPiece::Origin> origins(1, ShownPiece::Origin::kTarget);
  for (const Round& round : result.rounds) {
    origins.insert(origins.end(), static_cast<size_t>(round.accepted),
                   ShownPiece::Origin::kAccepted);
    origins.push_back(ShownPiece::Origin::kTarget);
  }
  std::vector<ShownPiece> pieces;
  for (size_t i = 0; i < decoded.pieces.size() && i < origins.size(); ++i) {
    pieces.push_back({decoded.pieces[i], origins[i]});
  }
  return pieces;
}

Result<std::vector<ShownPrompt>> shown_prompts(const Evaluation& evaluation,
                                               const std::string& target) {
  LazyTokenizer lazy(target);
  PERCHERON_ASSIGN_OR_RETURN(Tokenizer* const tokenizer, lazy.get());
  std::vector<ShownPrompt> shown;
  for (const EvaluatedPrompt& prompt : evaluation.prompts) {
    if (shown.size() == kShownPrompts) break;
    if (!prompt.drafted) continue;
    PERCHERON_ASSIGN_OR_RETURN(const Decoded question, tokenizer->decode(prompt.prompt));
    PERCHERON_ASSIGN_OR_RETURN(const Decoded answer, tokenizer->decode(prompt.drafted->tokens));
    AcceptanceCounts counts;
    for (const Round& round : prompt.drafted->rounds) counts.add(round);
    shown.push_back(
        {question.text, shown_answer(*prompt.drafted, answer), counts.acceptance_length()});
  }
  return shown;
}

}  // namespace

EngineOptions report_engine_options(const RunSetup& setup) {
  EngineOptions options;
  options.device = to_string(setup.placement.targets.front());
  options.threads = setup.placement.threads;
  options.dtype = option_of(setup.target_dtype);
  options.drafter_dtype = option_of(setup.drafter_dtype);
  options.weights = setup.target_weights;
  return options;
}

Result<std::string> report_run(const std::shared_ptr<const RunSetup>& setup,
                               const RunSummary& summary, FileSystem& files,
                               const std::function<void(const std::string&)>& say) {
  const proto::Run& run = setup->config;
  const std::string& checkpoint =
      summary.best_checkpoint.empty() ? summary.latest_checkpoint : summary.best_checkpoint;
  if (setup->data.held_out == nullptr || checkpoint.empty()) {
    say("no report: it needs data.held_out and a checkpoint");
    return std::string();
  }
  if (setup->placement.tensor_parallel > 1) {
    say(fmt::format(
        "no report: it decodes with the target on one device, and placement.tensor_parallel "
        "is {}; percheron evaluate measures {}",
        setup->placement.tensor_parallel, checkpoint));
    return std::string();
  }
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                             Engine::open(report_engine_options(*setup)));
  PERCHERON_RETURN_IF_ERROR(engine->load(files, run.target().path(), checkpoint));
  PERCHERON_ASSIGN_OR_RETURN(
      const Prompts prompts,
      prompts_of_dataset(*setup->data.held_out, run.evaluate().decode_conversations()));
  say(fmt::format("decoding {} held-out prompts with the target alone, {} and prompt lookup",
                  prompts.size(), checkpoint));
  PERCHERON_ASSIGN_OR_RETURN(
      const Evaluation evaluation,
      evaluate_prompts(engine->context(), engine->target(), engine->drafter(), prompts,
                       evaluation_options(*setup, engine->target())));
  PERCHERON_ASSIGN_OR_RETURN(const Evaluation untrained,
                             evaluate_untrained(*engine, setup, files, prompts));
  PERCHERON_ASSIGN_OR_RETURN(
      const MetricsHistory history,
      MetricsHistory::read(files, join_path(setup->output(), "metrics.jsonl")));
  ReportData data;
  data.title = fmt::format("{} drafter for {}",
                           setup->drafter.kind == DrafterKind::kEagle3 ? "EAGLE-3" : "DFlash",
                           run.target().path());
  data.figures = figures_of(*setup, summary, evaluation, untrained, history);
  PERCHERON_ASSIGN_OR_RETURN(
      const double walked,
      lookup_walk(engine->context(), *setup->data.held_out, setup->data.held_out_selection,
                  default_draft_length(setup->drafter)));
  data.figures["acceptance_length_lookup_walk"] = walked;
  data.config_yaml = run_config_yaml(run);
  Result<std::vector<ShownPrompt>> shown = shown_prompts(evaluation, run.target().path());
  if (shown.ok()) {
    data.prompts = std::move(shown).value();
  } else {
    log_warning("report.html shows no answers: {}", shown.status().message());
  }
  say(evaluation_table(evaluation));
  PERCHERON_RETURN_IF_ERROR(write_report(files, setup->output(), data, history));
  return join_path(setup->output(), "report.html");
}

}  // namespace percheron
