// percheron buckets and percheron plan as a user meets them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/file_system.h"
#include "base/json.h"
#include "tests/data/shards.h"
#include "tests/data/stand_in.h"
#include "tests/e2e/program.h"

namespace percheron {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string written(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + name;
  EXPECT_TRUE(write_text_atomically(system_files(), path, text).ok());
  return path;
}

void expect_error(const std::string& arguments, const std::string& part, int exit_code = 1) {
  const ProgramResult result = run_program(arguments);
  EXPECT_EQ(result.exit_code, exit_code) << result.output;
  EXPECT_THAT(result.output, AllOf(testing::StartsWith("error: "), HasSubstr(part)));
}

TEST(BucketsCommand, ReproducesThePublishedTableFromOneFile) {
  const std::string path = written("stand_in.json", stand_in_json(kPublishedSamples));
  const std::string command =
      "buckets " + path + " --buckets 6 --token-budget 49152 --max-batch 64";
  const ProgramResult table = run_program(command);
  EXPECT_EQ(table.exit_code, 0) << table.output;
  EXPECT_THAT(table.output, AllOf(HasSubstr("86.8 %"), HasSubstr("geometric")));
  const ProgramResult json = run_program(command + " --json");
  const auto parsed = parse_json(json.output, "buckets");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ((*parsed)["samples"], kPublishedSamples);
}

TEST(BucketsCommand, TakesLengthsAndShardsAndRefusesTheRest) {
  const std::string lengths = written("lengths.txt", "10\n300\n40\n90\n");
  EXPECT_EQ(run_program("buckets " + lengths).exit_code, 0);
  const std::string shard = testing::TempDir() + "plan.safetensors";
  ASSERT_TRUE(ShardParts(rows_of_lengths({10, 300, 40})).write(system_files(), shard).ok());
  EXPECT_THAT(run_program("buckets " + shard).output, HasSubstr("3 samples, 350 tokens"));
  expect_error("buckets " + lengths + " --token-budget 200", "the longest sample has 300");
  expect_error("buckets " + lengths + " --bounds 50,200", "the last bound is 200");
  expect_error("buckets " + written("bad.txt", "10\nten\n"), "bad.txt:2 is 'ten'");
  expect_error("buckets /no/such/file", "error: /no/such/file does not exist");
  expect_error("plan /no/such/file", "error: /no/such/file does not exist");
  expect_error("buckets " + lengths + " --buckets 0", "from 1 to 64", 2);
}

TEST(PlanCommand, ReproducesThePublishedInterleaving) {
  const std::string plot = testing::TempDir() + "plan.svg";
  const ProgramResult result = run_program(
      "plan --counts 2120,4017,5471,7493,8009,19581 --simulate --seeds 10 --plot " + plot);
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("46,691 batches"), HasSubstr("39,126, 3,391, 261")));
  const auto svg = system_files().read_text(plot);
  ASSERT_TRUE(svg.ok()) << svg.status().message();
  EXPECT_THAT(*svg, HasSubstr("</svg>"));
}

TEST(PlanCommand, ShowsWhatPackingGives) {
  std::string lengths;
  for (int i = 0; i < 35446; ++i)
    lengths += std::to_string(2353 + (i % 2 == 0 ? 1000 : -1000)) + "\n";
  const std::string path = written("mean_2353.txt", lengths);
  const ProgramResult result = run_program("plan " + path + " --token-budget 8192");
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("35,446 batches"), HasSubstr("4,431 batches"),
                                   HasSubstr("18,824 tokens"), HasSubstr("10,182")));
  EXPECT_EQ(run_program("plan " + path + " --simulate --seeds 2 --json").exit_code, 0);
}

TEST(PlanCommand, RefusesWhatItCanNotPlan) {
  const std::string lengths = written("lengths.txt", "10\n300\n40\n90\n");
  expect_error("plan", "give a token shard");
  expect_error("plan --counts 3,4", "--simulate");
  expect_error("plan " + lengths + " --counts 3,4 --simulate", "not both");
  expect_error("plan " + lengths + " --seeds 3", "--seeds is for --simulate");
  expect_error("plan --counts 3,-4 --simulate", "bucket 1 has -4");
  expect_error("plan " + lengths + " --token-budget 200", "longer than data.token_budget 200");
  EXPECT_EQ(run_program("plan " + lengths + " --token-budget 200 --too-long skip").exit_code, 0);
  expect_error("plan " + lengths + " --plot /no/such/directory/a.svg", "/no/such/directory");
}

}  // namespace
}  // namespace percheron
