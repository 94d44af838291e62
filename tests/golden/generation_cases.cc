#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/json.h"
#include "model/acceptance.h"
#include "model/generation.h"
#include "model/round_keeper.h"
#include "model/target.h"
#include "tests/golden/golden_device.h"
#include "tests/golden/runner.h"
#include "tests/golden/tensors.h"

namespace percheron::golden {
namespace {

using nlohmann::json;

std::vector<int32_t> to_ids(const std::vector<int64_t>& values) {
  return {values.begin(), values.end()};
}

// The logits that chose each new token: the prompt, then one token at a time, through a cache.
Result<std::vector<float>> cached_logits(GoldenDevice& device, Target& target,
                                         const std::vector<int32_t>& prompt,
                                         const std::vector<int32_t>& new_tokens) {
  Context context = device.context();
  const int64_t total = static_cast<int64_t>(prompt.size() + new_tokens.size());
  PERCHERON_ASSIGN_OR_RETURN(
      const std::unique_ptr<KvCache> cache,
      KvCache::make(context.device, target.config(), 1, total, target.compute_dtype()));
  std::vector<float> all;
  std::vector<int32_t> fed = prompt;
  for (const int32_t token : new_tokens) {
    Arena::Scope scope(context.arena);
    const int64_t rows = static_cast<int64_t>(fed.size());
    const TensorView last = context.arena.take(DType::kF32, {rows, target.config().hidden_size});
    const TensorView logits = context.arena.take(DType::kF32, {1, target.config().vocab_size});
    PERCHERON_RETURN_IF_ERROR(target.forward(context, {fed, {0, static_cast<int32_t>(rows)}, {0}},
                                             cache.get(), {}, last));
    target.logits(context, last.rows(rows - 1, rows), logits);
    PERCHERON_ASSIGN_OR_RETURN(const std::vector<float> row, device.to_host<float>(logits));
    all.insert(all.end(), row.begin(), row.end());
    fed = {token};
  }
  return all;
}

// Prompt `i` of the file: generated to the limit, and again with stop tokens.
Status compare_prompt(GoldenDevice& device, Target& target, const SafetensorsFile& file, size_t i,
                      double tolerance, Report& report) {
  Context context = device.context();
  const auto integers = [&](const char* name) {
    return read_integers(file, fmt::format("{}.{}", name, i));
  };
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<int64_t> prompt, integers("prompt"));
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<int64_t> new_tokens, integers("new_tokens"));
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<int64_t> stop, integers("stop_token"));
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<int64_t> stopped, integers("stopped_tokens"));
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<float> logits,
                             read_floats(file, fmt::format("logits.{}", i)));

  const std::vector<std::vector<int32_t>> prompts = {to_ids(prompt)};
  GenerateOptions options;
  options.new_tokens_max = static_cast<int64_t>(new_tokens.size());
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<Generated> plain,
                             generate(context, target, prompts, options));
  expect_equal(report, fmt::format("new_tokens.{}", i), plain[0].tokens, to_ids(new_tokens));
  options.stop_token_ids = {stop[0], target.config().vocab_size - 1};
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<Generated> cut,
                             generate(context, target, prompts, options));
  expect_equal(report, fmt::format("stopped_tokens.{}", i), cut[0].tokens, to_ids(stopped));
  expect_equal(report, fmt::format("stopped.{}", i), cut[0].stopped, true);
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<float> ours,
                             cached_logits(device, target, to_ids(prompt), to_ids(new_tokens)));
  report.differences.push_back(
      {fmt::format("logits.{}", i), largest_difference(ours, logits), tolerance});
  return ok_status();
}

// The scripted drafter: the target's token at each output position, plus one where it is wrong.
std::vector<int32_t> scripted_draft(const std::vector<int32_t>& greedy, size_t base, size_t count,
                                    const std::set<int64_t>& wrong, int64_t vocab_size) {
  std::vector<int32_t> draft;
  for (size_t position = base; position < std::min(base + count, greedy.size()); ++position) {
    const int64_t shift = wrong.count(static_cast<int64_t>(position)) != 0 ? 1 : 0;
    draft.push_back(static_cast<int32_t>((greedy[position] + shift) % vocab_size));
  }
  return draft;
}

void compare_number(Report& report, const std::string& what, double actual, const json& expected) {
  const double wanted = expected.is_number() ? expected.get<double>() : 1.0 / 0.0;
  report.differences.push_back({what, std::abs(actual - wanted), 1e-12});
}

void compare_summary(Report& report, const std::string& name, const RoundKeeper& keeper,
                     const json& summary) {
  AcceptanceCounts counts;
  for (const Round& round : keeper.rounds()) counts.add(round);
  const double rounds = static_cast<double>(counts.rounds());
  const double tokens = static_cast<double>(keeper.tokens().size());
  const auto check = [&](const char* key, double actual) {
    compare_number(report, name + "." + key, actual, summary.value(key, json()));
  };
  check("rounds", rounds);
  check("drafted", static_cast<double>(counts.drafted()));
  check("accepted", static_cast<double>(counts.accepted()));
  check("acceptance_length", counts.acceptance_length());
  check("accepted_share_of_drafted",
        static_cast<double>(counts.accepted()) / static_cast<double>(counts.drafted()));
  check("emitted_per_round", (tokens - 1) / rounds);
  check("tokens_per_round_counting_the_prefill_token", tokens / rounds);
  json conditional = json::array();
  for (const std::optional<double>& share : counts.conditional_per_position()) {
    conditional.push_back(share.has_value() ? json(*share) : json());
  }
  expect_equal(report, name + ".survival_per_position", json(counts.accepted_per_position()),
               summary.value("survival_per_position", json()));
  expect_equal(report, name + ".conditional_per_position", conditional,
               summary.value("conditional_per_position", json()));
}

Status run_chain_case(const json& chain, const json& item, Report& report) {
  const std::string what = "chain case";
  PERCHERON_ASSIGN_OR_RETURN(const std::string name, json_get<std::string>(item, "name", what));
  PERCHERON_ASSIGN_OR_RETURN(const auto greedy_values,
                             json_get<std::vector<int64_t>>(chain, "greedy_tokens", what));
  PERCHERON_ASSIGN_OR_RETURN(const int64_t vocab, json_get<int64_t>(chain, "vocab_size", what));
  PERCHERON_ASSIGN_OR_RETURN(const auto wrong_values,
                             json_get<std::vector<int64_t>>(item, "wrong", what));
  PERCHERON_ASSIGN_OR_RETURN(const int64_t k, json_get<int64_t>(item, "k", what));
  PERCHERON_ASSIGN_OR_RETURN(const int64_t limit, json_get<int64_t>(item, "limit", what));
  PERCHERON_ASSIGN_OR_RETURN(const int64_t stop, json_get_or<int64_t>(item, "stop", -1, what));
  PERCHERON_ASSIGN_OR_RETURN(const json* expected_rounds, json_array(item, "rounds", what));
  PERCHERON_ASSIGN_OR_RETURN(const auto tokens,
                             json_get<std::vector<int64_t>>(item, "tokens", what));
  const std::vector<int32_t> greedy = to_ids(greedy_values);
  const std::set<int64_t> wrong(wrong_values.begin(), wrong_values.end());

  if (greedy.empty() || k < 0 || vocab < 1) {
    return invalid_argument(name + ": no greedy_tokens, or k or vocab_size out of range");
  }
  std::vector<int64_t> stops;
  if (stop >= 0) stops.push_back(stop);
  RoundKeeper keeper(limit, stops);
  keeper.begin(greedy[0]);
  json rounds = json::array();
  while (!keeper.done()) {
    const size_t base = keeper.tokens().size();
    if (base + static_cast<size_t>(k) >= greedy.size()) {
      return invalid_argument(name + ": greedy_tokens end before the case does");
    }
    const std::vector<int32_t> draft =
        scripted_draft(greedy, base, static_cast<size_t>(k), wrong, vocab);
    const std::span<const int32_t> target(greedy.data() + base, draft.size() + 1);
    const std::span<const int32_t> verified = verify_greedily(draft, target);
    const int64_t emitted = keeper.add_round(k, verified);
    rounds.push_back(
        {{"draft", draft},
         {"accepted", keeper.rounds().back().accepted},
         {"verified", std::vector<int32_t>(verified.begin(), verified.end())},
         {"emitted", std::vector<int32_t>(verified.begin(), verified.begin() + emitted)}});
  }
  expect_equal(report, name + ".rounds", rounds, *expected_rounds);
  expect_equal(report, name + ".tokens", keeper.tokens(), to_ids(tokens));
  compare_summary(report, name, keeper, item.value("summary", json()));
  return ok_status();
}

Status run_offline(const json& offline, Report& report) {
  const std::string what = "offline";
  PERCHERON_ASSIGN_OR_RETURN(const json* correct, json_array(offline, "correct", what));
  PERCHERON_ASSIGN_OR_RETURN(const json* valid, json_array(offline, "valid", what));
  if (correct->size() != valid->size()) {
    return invalid_argument("offline: correct and valid differ in length");
  }
  BlockAgreement agreement;
  for (size_t block = 0; block < correct->size(); ++block) {
    const json object = {{"correct", (*correct)[block]}, {"valid", (*valid)[block]}};
    PERCHERON_ASSIGN_OR_RETURN(const auto right,
                               json_get<std::vector<int64_t>>(object, "correct", what));
    PERCHERON_ASSIGN_OR_RETURN(const auto counts,
                               json_get<std::vector<int64_t>>(object, "valid", what));
    if (right.size() != counts.size()) return invalid_argument("offline: a block is ragged");
    agreement.add(std::vector<uint8_t>(right.begin(), right.end()),
                  std::vector<uint8_t>(counts.begin(), counts.end()));
  }
  const std::vector<double> accuracy = agreement.accuracy_per_position();
  for (size_t j = 0; j < accuracy.size(); ++j) {
    compare_number(report, fmt::format("offline.accuracy_per_position[{}]", j), accuracy[j],
                   offline.value("accuracy_per_position", json::array())[j]);
  }
  const auto check = [&](const char* key, double actual) {
    compare_number(report, std::string("offline.") + key, actual, offline.value(key, json()));
  };
  check("mean_run_plus_one", agreement.mean_run_plus_one());
  check("sum_of_products", agreement.sum_of_products());
  check("one_plus_sum_of_products", 1.0 + agreement.sum_of_products());
  return ok_status();
}

// The directory that a case's "model" names, relative to the case's own.
std::string model_directory(const std::string& path, const std::string& model) {
  return (std::filesystem::path(path).parent_path() / model).lexically_normal().string();
}

}  // namespace

Result<Report> run_greedy_generation(const std::string& path, DeviceId device_id) {
  PERCHERON_ASSIGN_OR_RETURN(const SafetensorsFile file,
                             SafetensorsFile::open(system_files(), path));
  PERCHERON_ASSIGN_OR_RETURN(const double tolerance, metadata_number(file, "tolerance_abs"));
  const auto model = file.metadata().find("model");
  if (model == file.metadata().end()) {
    return invalid_argument(path + ": metadata names no model");
  }
  PERCHERON_ASSIGN_OR_RETURN(GoldenDevice device, GoldenDevice::open(device_id));
  Context context = device.context();
  TargetOptions options;
  options.compute_dtype = DType::kF32;
  PERCHERON_ASSIGN_OR_RETURN(
      const std::unique_ptr<Target> target,
      Target::load(system_files(), model_directory(path, model->second), context, options));
  Report report;
  for (size_t i = 0; file.contains(fmt::format("prompt.{}", i)); ++i) {
    PERCHERON_RETURN_IF_ERROR(compare_prompt(device, *target, file, i, tolerance, report));
  }
  return report;
}

Result<Report> run_speculative_acceptance(const std::string& path, DeviceId) {
  PERCHERON_ASSIGN_OR_RETURN(const std::string text, system_files().read_text(path));
  PERCHERON_ASSIGN_OR_RETURN(const json object, parse_json(text, path));
  PERCHERON_ASSIGN_OR_RETURN(const json* chain, json_object(object, "chain", path));
  PERCHERON_ASSIGN_OR_RETURN(const json* cases, json_array(*chain, "cases", path));
  PERCHERON_ASSIGN_OR_RETURN(const json* offline, json_object(object, "offline", path));
  Report report;
  for (const json& item : *cases) {
    PERCHERON_RETURN_IF_ERROR(run_chain_case(*chain, item, report).with_context(path));
  }
  PERCHERON_RETURN_IF_ERROR(run_offline(*offline, report).with_context(path));
  return report;
}

}  // namespace percheron::golden
