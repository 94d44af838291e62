#include <memory>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "data/bucket_comparison.h"
#include "data/length_file.h"
#include "tools/bucket_report.h"
#include "tools/commands.h"
#include "tools/length_options.h"
#include "tools/printer.h"

namespace percheron {
namespace {

struct BucketsOptions {
  std::string lengths;
  int64_t buckets = 6;
  BatchLimits limits;
  BucketBounds bounds;
  uint64_t seed = 42;
  bool json = false;
};

Status find_buckets(const BucketsOptions& options) {
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<int32_t> lengths,
                             read_lengths(system_files(), options.lengths));
  const Result<BucketComparison> comparison =
      compare_buckets(lengths, options.limits, options.buckets, options.bounds, options.seed);
  if (!comparison.ok()) return comparison.status().with_context(options.lengths);
  Printer out(stdout);
  out.write(options.json ? bucket_json(*comparison).dump(2) + "\n" : bucket_report(*comparison));
  return out.status();
}

}  // namespace

void add_buckets_command(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<BucketsOptions>();
  CLI::App* command = app.add_subcommand(
      "buckets", "Find the buckets of length that pad least, and compare them with others");
  command->footer(
      "The bounds are optimal under two models: padding to the longest sample that a batch of the "
      "bucket is expected to have, which data.order: bucketed uses, and padding to the bucket's "
      "upper bound. docs/batching.md explains both.");
  add_lengths_argument(*command, options->lengths)->required();
  add_batch_options(*command, options->limits, options->buckets);
  command
      ->add_option("--bounds", options->bounds,
                   "Upper bounds to compare with, such as 512,1024,8192")
      ->delimiter(',')
      ->allow_extra_args(false);
  command->add_option("--seed", options->seed, "Of the epoch that is planned with each bounds")
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print JSON instead of tables");
  command->callback([options, &chosen] { chosen = [options] { return find_buckets(*options); }; });
}

}  // namespace percheron
