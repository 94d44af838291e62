#include "tools/length_options.h"

#include "tools/number_options.h"

namespace percheron {

CLI::Option* add_lengths_argument(CLI::App& command, std::string& lengths) {
  return command.add_option("lengths", lengths,
                            "Token shard or directory of them, a file with one length a line, or a "
                            "JSON file with a quantile function");
}

void add_batch_options(CLI::App& command, BatchLimits& limits, int64_t& buckets) {
  command
      .add_option("--token-budget", limits.token_budget,
                  "Tokens of a micro-batch, padding included, at most")
      ->check(in_range(1, 2147483647))
      ->capture_default_str();
  command.add_option("--max-batch", limits.samples_max, "Samples of a padded micro-batch, at most")
      ->check(in_range(1, kBatchSamplesMax))
      ->capture_default_str();
  command.add_option("--buckets", buckets, "Buckets, at most")
      ->check(in_range(1, kBucketsMax))
      ->capture_default_str();
}

}  // namespace percheron
