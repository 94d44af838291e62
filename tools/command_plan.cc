#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "data/length_file.h"
#include "data/plan_simulation.h"
#include "tools/commands.h"
#include "tools/length_options.h"
#include "tools/number_options.h"
#include "tools/plan_chart.h"
#include "tools/plan_report.h"
#include "tools/printer.h"
#include "tools/svg_file.h"

namespace percheron {
namespace {

struct PlanCommandOptions {
  std::string lengths;
  std::vector<int64_t> counts;
  bool simulate = false;
  Seeds seeds = {42, 0};
  BatchLimits limits = {.token_budget = 8192};
  int64_t buckets = 6;
  std::string too_long = "refuse";
  int64_t samples_per_batch = 8;
  int64_t micro_batches_per_step = 1;
  std::string plot;
  bool json = false;
};

constexpr int64_t kSeedsMax = 10000;
constexpr int64_t kCountsSeeds = 100, kLengthsSeeds = 5;

Status check(const PlanCommandOptions& options) {
  if (options.lengths.empty() == options.counts.empty())
    return invalid_argument(options.counts.empty()
                                ? "there is nothing to plan: give a token shard, a file of lengths "
                                  "or --counts"
                                : "give either lengths (" + options.lengths +
                                      ") or --counts, not both");
  if (!options.counts.empty() && !options.simulate)
    return invalid_argument("--counts are numbers of batches, which only --simulate can order");
  if (options.seeds.count > 0 && !options.simulate)
    return invalid_argument("--seeds is for --simulate: without it one epoch is planned");
  return ok_status();
}

Status simulate_batch_orders(PlanReport& report) {
  for (const BatchOrder order : kBatchOrders) {
    PERCHERON_ASSIGN_OR_RETURN(BatchOrderSimulation simulation,
                               simulate_batch_order(report.counts, order, report.seeds));
    report.batch_orders.push_back(std::move(simulation));
  }
  return ok_status();
}

// The batches that the first seed's bucketed epoch has of each bucket.
std::vector<int64_t> count_batches(const SampleSelection& selection, const PlanOptions& options) {
  std::vector<int64_t> counts(options.bucket_bounds.size());
  const EpochPlan plan = EpochPlan::make(selection, options, 0);
  for (const uint32_t bucket : buckets_of(plan, options.bucket_bounds)) ++counts[bucket];
  return counts;
}

Status plan_lengths(const std::vector<int32_t>& lengths, const PlanCommandOptions& options,
                    PlanReport& report, std::vector<LineChart>& charts) {
  PlanOptions plan;
  plan.seed = options.seeds.first;
  plan.order = EpochOrder::kBucketed;
  plan.token_budget = options.limits.token_budget;
  plan.batch_samples_max = options.limits.samples_max;
  plan.buckets = options.buckets;
  if (options.too_long == "truncate") plan.too_long = TooLong::kTruncate;
  if (options.too_long == "skip") plan.too_long = TooLong::kSkip;
  PERCHERON_ASSIGN_OR_RETURN(const SampleSelection selection, select_samples(lengths, plan));
  PERCHERON_RETURN_IF_ERROR(resolve_buckets(selection, plan));
  report.options = plan;
  if (!options.plot.empty()) charts.push_back(length_chart(selection, plan));
  for (const EpochOrder order : kEpochOrders) {
    PlanOptions ordered = plan;
    ordered.order = order;
    if (order == EpochOrder::kPacked)
      report.packing = packing_arithmetic(selection, ordered, options.samples_per_batch);
    report.orders.push_back(
        simulate_epoch_order(selection, ordered, report.micro_batches_per_step, report.seeds));
  }
  if (options.simulate) report.counts = count_batches(selection, plan);
  return ok_status();
}

Status show_plans(const PlanCommandOptions& options) {
  PERCHERON_RETURN_IF_ERROR(check(options));
  PlanReport report;
  report.seeds = options.seeds;
  report.micro_batches_per_step = options.micro_batches_per_step;
  report.counts = options.counts;
  if (report.seeds.count == 0) {
    report.seeds.count = !options.simulate        ? 1
                         : options.counts.empty() ? kLengthsSeeds
                                                  : kCountsSeeds;
  }
  std::vector<LineChart> charts;
  if (options.counts.empty()) {
    PERCHERON_ASSIGN_OR_RETURN(const std::vector<int32_t> lengths,
                               read_lengths(system_files(), options.lengths));
    const Status planned = plan_lengths(lengths, options, report, charts);
    if (!planned.ok()) return planned.with_context(options.lengths);
  }
  if (!report.counts.empty()) {
    PERCHERON_RETURN_IF_ERROR(simulate_batch_orders(report));
    if (!options.plot.empty()) {
      for (LineChart& chart : batch_order_charts(report.counts, report.seeds.first))
        charts.push_back(std::move(chart));
    }
  }
  if (!options.plot.empty()) {
    PERCHERON_RETURN_IF_ERROR(
        write_text_atomically(system_files(), options.plot, svg_file(charts)));
  }
  Printer out(stdout);
  out.write(options.json ? plan_json(report).dump(2) + "\n" : plan_report(report));
  return out.status();
}

void add_planning_options(CLI::App& command, PlanCommandOptions& options) {
  add_batch_options(command, options.limits, options.buckets);
  command
      .add_option("--too-long", options.too_long, "What becomes of samples over the token budget")
      ->check(CLI::IsMember({"refuse", "truncate", "skip"}))
      ->capture_default_str();
  command
      .add_option("--samples-per-batch", options.samples_per_batch,
                  "Batches of so many samples are counted for comparison")
      ->check(in_range(1, kBatchSamplesMax))
      ->capture_default_str();
  command
      .add_option("--micro-batches-per-step", options.micro_batches_per_step,
                  "Of the step whose mix of lengths is measured")
      ->check(in_range(1, 65536))
      ->capture_default_str();
}

}  // namespace

void add_plan_command(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<PlanCommandOptions>();
  CLI::App* command = app.add_subcommand(
      "plan", "Show what each order of an epoch makes of samples of unequal length");
  command->footer(
      "docs/batching.md explains the orders. The plan of a run, its devices and memory, is "
      "percheron train --plan.");
  add_lengths_argument(*command, options->lengths);
  command
      ->add_option("--counts", options->counts,
                   "Instead of lengths: batches of each bucket, such as 2120,4017,5471")
      ->delimiter(',')
      ->allow_extra_args(false);
  command->add_flag("--simulate", options->simulate,
                    "Plan with many seeds, show the spread, and compare orders of the buckets");
  command
      ->add_option("--seeds", options->seeds.count,
                   "Seeds to simulate; 0 = 100 for --counts, 5 for lengths")
      ->check(in_range(0, kSeedsMax))
      ->capture_default_str();
  command->add_option("--seed", options->seeds.first, "The first seed")->capture_default_str();
  add_planning_options(*command, *options);
  command->add_flag("--json", options->json, "Print JSON instead of tables");
  command->add_option("--plot", options->plot, "Also draw the epoch into this SVG file");
  command->callback([options, &chosen] { chosen = [options] { return show_plans(*options); }; });
}

}  // namespace percheron
