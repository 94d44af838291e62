// How many real tokens a second each order of the data trains on, target and drafter together, on
// samples whose lengths are as unequal as those of a published training set. The orders take turns,
// micro-batch by micro-batch, so that whatever else the machine does slows all alike.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "actors/device_worker.h"
#include "actors/feature_maker.h"
#include "actors/run_setup.h"
#include "actors/step_trainer.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/units.h"
#include "bench/measurement.h"
#include "bench/stand_in_lengths.h"
#include "bench/stretched_shard.h"
#include "tools/number_options.h"
#include "tools/run_config.h"

namespace percheron {
namespace {

struct Settings {
  std::string config;
  std::vector<std::string> overrides;
  int64_t samples = 20000, token_budget = 6144, tokens = 30000;
  double scale = 0.125;
  std::string directory = "runs/order_bench";
};

/// What one order has done so far.
struct Lane {
  std::shared_ptr<const RunSetup> setup;
  std::unique_ptr<DrafterTrainer> trainer;
  std::unique_ptr<Quarantine> quarantine;
  std::unique_ptr<TargetFeatureMaker> maker;
  EpochPlan plan;  // of the whole epoch
  int64_t steps = 0, steps_total = 0;
  int64_t tokens = 0, computed_tokens = 0;  // without and with padding
  std::vector<StepSums> sums;               // of each step
  Timings target, drafter;                  // of each step

  double share_done() const {
    return static_cast<double>(steps) / static_cast<double>(steps_total);
  }
};

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

int64_t own_tokens(const MicroBatch& batch) {
  int64_t tokens = 0;
  for (int64_t d = 0; d < batch.documents(); ++d)
    tokens += batch.own_end(d) - batch.offsets[static_cast<size_t>(d)];
  return tokens;
}

/// The quantile function at equal distances, scaled, in random order.
std::vector<int32_t> make_lengths(const Settings& settings) {
  std::vector<int32_t> lengths(static_cast<size_t>(settings.samples));
  for (size_t i = 0; i < lengths.size(); ++i) {
    const double at = (static_cast<double>(i) + 0.5) / static_cast<double>(settings.samples);
    lengths[i] = std::max(1, static_cast<int32_t>(settings.scale * stand_in_length(at)));
  }
  Random random(1);
  shuffle(std::span(lengths), random);
  return lengths;
}

/// Writes the stretched data of the run's, and returns the run on it.
Result<proto::Run> stretch(const Settings& settings) {
  PERCHERON_ASSIGN_OR_RETURN(proto::Run run,
                             read_run_config(system_files(), settings.config, settings.overrides));
  const std::vector<std::string> paths(run.data().train().begin(), run.data().train().end());
  PERCHERON_ASSIGN_OR_RETURN(const TokenDataset dataset, TokenDataset::open(system_files(), paths));
  PERCHERON_RETURN_IF_ERROR(system_files().create_directories(settings.directory));
  const std::string shard = join_path(settings.directory, "stretched.safetensors");
  PERCHERON_RETURN_IF_ERROR(
      write_stretched_shard(system_files(), dataset, make_lengths(settings), shard));
  proto::Data& data = *run.mutable_data();
  data.clear_train();
  data.clear_held_out();
  data.add_train(shard);
  data.set_token_budget(settings.token_budget);
  run.mutable_features()->clear_cache_memory_bytes_max();
  run.mutable_features()->clear_cache_disk_bytes_max();
  run.mutable_train()->clear_steps();
  run.mutable_train()->set_epochs(1);
  run.mutable_schedule()->set_kind(proto::Schedule::CONSTANT);
  run.mutable_schedule()->set_warmup_steps(0);
  run.clear_evaluate();
  run.mutable_output()->set_directory(settings.directory);
  return run;
}

proto::Data::Order order_setting(EpochOrder order) {
  switch (order) {
    case EpochOrder::kPacked: return proto::Data::PACKED;
    case EpochOrder::kSorted: return proto::Data::SORTED;
    case EpochOrder::kShuffled: return proto::Data::SHUFFLED;
    case EpochOrder::kBucketed: return proto::Data::BUCKETED;
  }
  return proto::Data::PACKED;
}

Result<std::shared_ptr<const RunSetup>> with_order(proto::Run run, EpochOrder order) {
  run.mutable_data()->set_order(order_setting(order));
  return resolve_run(run, system_files());
}

Result<Lane> make_lane(Context& context, Target& target, std::shared_ptr<const RunSetup> setup,
                       int64_t tokens) {
  const SampleSelection& selection = setup->data.selection;
  Lane lane;
  lane.setup = setup;
  lane.plan = EpochPlan::make(selection, setup->data.options, 0);
  const double share = static_cast<double>(tokens) / static_cast<double>(selection.tokens);
  const double steps = share * static_cast<double>(lane.plan.micro_batches());
  const bool whole = tokens == 0 || share >= 1;
  lane.steps_total = whole ? lane.plan.micro_batches() : std::max<int64_t>(1, std::llround(steps));
  lane.quarantine = std::make_unique<Quarantine>(static_cast<int64_t>(selection.samples.size()));
  lane.maker = std::make_unique<TargetFeatureMaker>(
      target, nullptr, *lane.quarantine, setup->features, "order_bench", setup->tokens_max);
  PERCHERON_ASSIGN_OR_RETURN(lane.trainer,
                             DrafterTrainer::make(context, system_files(), setup, target));
  return lane;
}

/// The lane's next step, of the micro-batches at equal distances along its epoch.
MicroBatch next_batch(const Lane& lane) {
  const int64_t index = (2 * lane.steps + 1) * lane.plan.micro_batches() / (2 * lane.steps_total);
  return make_micro_batch(*lane.setup->data.train, lane.plan, index);
}

Status train_step(Context& context, Lane& lane) {
  const MicroBatch batch = next_batch(lane);
  FeaturesPtr features;
  const auto make_features = [&]() -> Status {
    PERCHERON_ASSIGN_OR_RETURN(MadeFeatures made, lane.maker->make(context, batch));
    features = std::move(made.features);
    return ok_status();
  };
  const auto learn = [&]() -> Status {
    PERCHERON_ASSIGN_OR_RETURN(const StepSums sums, lane.trainer->add(context, *features));
    lane.sums.push_back(sums);
    return lane.trainer->apply(context, nullptr, sums, lane.steps).status();
  };
  PERCHERON_RETURN_IF_ERROR(time_run(make_features, lane.target));
  PERCHERON_RETURN_IF_ERROR(time_run(learn, lane.drafter));
  lane.tokens += own_tokens(batch);
  lane.computed_tokens += batch.tokens();
  ++lane.steps;
  return ok_status();
}

/// Warms caches and the arena with a step that leaves no trace.
Status warm_up(Context& context, Lane& lane) {
  PERCHERON_ASSIGN_OR_RETURN(const MadeFeatures made, lane.maker->make(context, next_batch(lane)));
  PERCHERON_RETURN_IF_ERROR(lane.trainer->add(context, *made.features).status());
  lane.trainer->discard(context);
  return ok_status();
}

/// The loss of steps [begin, end).
double mean_loss(const Lane& lane, size_t begin, size_t end) {
  StepSums total;
  for (size_t i = begin; i < end; ++i) total.add(lane.sums[i]);
  return total.weight > 0 ? total.loss / total.weight : 0;
}

double tokens_per_second(const Lane& lane) {
  return static_cast<double>(lane.tokens) /
         (sum(lane.target.wall_seconds) + sum(lane.drafter.wall_seconds));
}

void report_lanes(const std::vector<Lane>& lanes) {
  fmt::print("{:<10}{:>7}{:>9}{:>10}{:>20}{:>10}{:>11}{:>8}{:>11}{:>8}{:>18}\n", "order", "steps",
             "tokens", "computed", "efficiency (epoch)", "tokens/s", "of sorted", "cpu",
             "of sorted", "target", "loss: first, last");
  const auto by_processor = [](const Lane& lane) {
    return static_cast<double>(lane.tokens) /
           (sum(lane.target.cpu_seconds) + sum(lane.drafter.cpu_seconds));
  };
  for (const Lane& lane : lanes) {
    const double target = sum(lane.target.wall_seconds), drafter = sum(lane.drafter.wall_seconds);
    const size_t steps = lane.sums.size(), quarter = std::max<size_t>(1, steps / 4);
    fmt::print("{:<10}{:>7}{:>9}{:>10}{:>20}{:>10.1f}{:>11}{:>8.1f}{:>11}{:>8}{:>18}\n",
               epoch_order_name(lane.setup->data.options.order), lane.steps,
               format_count(static_cast<uint64_t>(lane.tokens)),
               format_count(static_cast<uint64_t>(lane.computed_tokens)),
               fmt::format("{:.1f} ({:.1f}) %",
                           100.0 * static_cast<double>(lane.tokens) /
                               static_cast<double>(lane.computed_tokens),
                           100 * lane.plan.efficiency()),
               tokens_per_second(lane),
               fmt::format("{:.1f} %", 100 * tokens_per_second(lane) / tokens_per_second(lanes[0])),
               by_processor(lane),
               fmt::format("{:.1f} %", 100 * by_processor(lane) / by_processor(lanes[0])),
               fmt::format("{:.0f} %", 100 * target / (target + drafter)),
               fmt::format("{:.3f}, {:.3f}", mean_loss(lane, 0, quarter),
                           mean_loss(lane, steps - quarter, steps)));
  }
  fmt::print(
      "tokens: without padding; cpu: tokens a second of processor time; target: its share of the "
      "time;\nloss: of the first and the last quarter of the steps\n");
}

Status measure(Context& context, const std::vector<std::shared_ptr<const RunSetup>>& setups,
               int64_t tokens) {
  const RunSetup& first = *setups[0];
  TargetOptions options;
  options.compute_dtype = first.target_dtype;
  options.capture = first.drafter.capture;
  options.capture_last = first.features.has_last;
  PERCHERON_ASSIGN_OR_RETURN(
      const std::unique_ptr<Target> target,
      Target::load(system_files(), first.config.target().path(), context, options));
  std::vector<Lane> lanes;
  for (const auto& setup : setups) {
    PERCHERON_ASSIGN_OR_RETURN(Lane lane, make_lane(context, *target, setup, tokens));
    PERCHERON_RETURN_IF_ERROR(warm_up(context, lane));
    lanes.push_back(std::move(lane));
  }
  const auto behind = [](const Lane& a, const Lane& b) { return a.share_done() < b.share_done(); };
  for (auto next = lanes.begin(); next->share_done() < 1;
       next = std::min_element(lanes.begin(), lanes.end(), behind)) {
    PERCHERON_RETURN_IF_ERROR(train_step(context, *next));
  }
  report_lanes(lanes);
  return ok_status();
}

Status run(const Settings& settings) {
  PERCHERON_ASSIGN_OR_RETURN(const proto::Run config, stretch(settings));
  std::vector<std::shared_ptr<const RunSetup>> setups;
  for (const EpochOrder order : kEpochOrders) {
    PERCHERON_ASSIGN_OR_RETURN(auto setup, with_order(config, order));
    setups.push_back(std::move(setup));
  }
  const PlacementPlan& placement = setups[0]->placement;
  PERCHERON_ASSIGN_OR_RETURN(
      const std::unique_ptr<DeviceWorker> worker,
      DeviceWorker::start(placement.trainers[0], DeviceOptions{placement.threads}, system_clock()));
  const SampleSelection& selection = setups[0]->data.selection;
  fmt::print("{}, {} threads; {} samples, {} tokens, {} at most a micro-batch; {} dropped\n",
             worker->info().description, worker->info().threads,
             format_count(selection.samples.size()),
             format_count(static_cast<uint64_t>(selection.tokens)),
             format_count(static_cast<uint64_t>(settings.token_budget)),
             format_count(static_cast<uint64_t>(selection.unsupervised_dropped)));
  std::fflush(stdout);
  return worker->run([&](Context& context) { return measure(context, setups, settings.tokens); });
}

void add_options(CLI::App& app, Settings& settings) {
  app.add_option("config", settings.config,
                 "The run whose training data is stretched and whose drafter is trained, such as "
                 "deploy/demo/eagle3.yaml; one epoch at a constant rate, without cache, evaluation "
                 "and checkpoints")
      ->required();
  app.add_option("overrides", settings.overrides, "Settings that replace the file's");
  app.add_option("--samples", settings.samples, "Samples of the stretched data")
      ->check(in_range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--scale", settings.scale,
                 "Their lengths, as a share of the published set's 65 to 8191 tokens")
      ->check(CLI::Range(0.001, 1.0))
      ->capture_default_str();
  app.add_option("--token-budget", settings.token_budget, "Tokens of a micro-batch, at most")
      ->check(in_range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--tokens", settings.tokens,
                 "About so many tokens each order trains on, padding aside, in micro-batches at "
                 "equal distances along its epoch; 0 = the whole epoch")
      ->check(in_range(0, 1'000'000'000))
      ->capture_default_str();
  app.add_option("--directory", settings.directory, "Where the stretched data is written")
      ->capture_default_str();
}

}  // namespace
}  // namespace percheron

int main(int argc, char** argv) {
  CLI::App app{"Measures how many real tokens a second each order of the data trains on."};
  percheron::Settings settings;
  percheron::add_options(app, settings);
  CLI11_PARSE(app, argc, argv);
  return percheron::exit_code(percheron::run(settings));
}
