// The program as a user meets it: whole commands on a tiny model, and what bad input gets.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/json.h"
#include "data/safetensors.h"
#include "data/vocabulary_map.h"
#include "tests/actors/tiny_run.h"
#include "tests/e2e/program.h"
#include "tests/model/toy_model.h"
#include "tools/run_config.h"

namespace percheron {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// A tiny run's configuration in a file.
struct TinyConfig {
  proto::Run run;
  std::string path;
};

TinyConfig tiny_config(const std::string& name, const TinyOptions& options = {}) {
  TinyConfig config;
  config.run = make_tiny_run(name, options);
  config.run.mutable_evaluate()->set_new_tokens_max(12);
  config.run.mutable_evaluate()->set_decode_conversations(3);
  config.path = testing::TempDir() + name + ".yaml";
  write_file(config.path, run_config_yaml(config.run));
  return config;
}

nlohmann::json json_of(const std::string& text) {
  const Result<nlohmann::json> parsed = parse_json(text, "output");
  EXPECT_TRUE(parsed.ok()) << parsed.status().message() << "\n" << text;
  return parsed.ok() ? *parsed : nlohmann::json();
}

/// Bad input: exit code 1 and exactly one error line, at the end.
void expect_one_error(const ProgramResult& result, const std::string& part, int exit_code = 1) {
  EXPECT_EQ(result.exit_code, exit_code) << result.output;
  std::vector<std::string> errors;
  std::istringstream lines(result.output);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("error: ")) errors.push_back(line);
  }
  ASSERT_EQ(errors.size(), 1u) << result.output;
  EXPECT_THAT(result.output, EndsWith(errors[0] + "\n"));
  EXPECT_THAT(errors[0], HasSubstr(part));
}

/// A command line that can't be understood: exit code 2 and that one line alone.
void expect_misuse(const std::string& arguments, const std::string& part) {
  const ProgramResult result = run_program(arguments);
  expect_one_error(result, part, 2);
  EXPECT_THAT(result.output, StartsWith("error: "));
}

TEST(Program, EveryVerbExplainsItself) {
  for (const std::string verb : {"train", "generate", "evaluate", "export", "inspect", "prepare",
                                 "doctor", "regenerate", "buckets", "plan", "certs"}) {
    EXPECT_THAT(run_program("--help").output, HasSubstr(verb));
  }
  for (const std::string verb :
       {"train", "generate", "evaluate", "export", "inspect", "buckets", "plan", "certs"}) {
    const ProgramResult help = run_program(verb + " --help");
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_THAT(help.output, HasSubstr("Usage"));
  }
  EXPECT_THAT(run_program("--version").output, StartsWith("percheron "));
}

TEST(Program, AMisspelledCommandLineIsOneErrorLine) {
  expect_misuse("trian", "unknown command 'trian'; did you mean 'train'?");
  expect_misuse("serve-the-model", "percheron --help lists the commands");
  expect_misuse("train", "--config is required; percheron train --help");
  expect_misuse("inspect a b", "b; percheron inspect --help");
  expect_misuse("export x --target t --out y --to gguf", "gguf");
  const ProgramResult alone = run_program("");
  EXPECT_EQ(alone.exit_code, 2);
  EXPECT_THAT(alone.output, AllOf(HasSubstr("Usage: percheron ["), HasSubstr("inspect")));
}

TEST(Program, TheDoctorsExitCodeTellsBadInput) {
  expect_one_error(run_program("doctor none.jsonl"), "none.jsonl does not exist", 2);
}

// CLI11's checks print the largest double in 309 digits.
TEST(Program, AnOptionsNumberOutOfRangeIsNamedWithItsRange) {
  const std::string evaluate = "evaluate --target t --prompts p ";
  expect_misuse(evaluate + "--draft-length -1", "--draft-length: it is -1, but must be from 0 to");
  expect_misuse(evaluate + "--temperature -1", "--temperature: it is -1, but must be at least 0");
  expect_misuse(evaluate + "--limit many", "--limit: it is 'many', which is no number");
  expect_misuse(evaluate + "--new-tokens 0", "--new-tokens: it is 0, but must be from 1 to");
  expect_misuse("generate --target t --slots 0", "--slots: it is 0, but must be from 1 to 4096");
  expect_misuse("export d --target t --out o --draft-tokens 100000",
                "--draft-tokens: it is 100000, but must be from 0 to 1024");
}

TEST(Program, APlanWritesNothing) {
  const TinyConfig config = tiny_config("plan");
  const ProgramResult plan = run_program("train -c " + config.path + " --plan");
  EXPECT_EQ(plan.exit_code, 0) << plan.output;
  EXPECT_THAT(plan.output, AllOf(HasSubstr("features"), HasSubstr("steps")));
  EXPECT_FALSE(system_files().exists(config.run.output().directory()));
}

class TrainedRun : public testing::TestWithParam<bool> {};

// TorchSpec#38: what was exported was not what had been trained.
TEST_P(TrainedRun, IsReportedExportedAndReloadedWithTheSameAcceptance) {
  TinyOptions options;
  options.held_out = 4;
  options.dflash = GetParam();
  const TinyConfig config = tiny_config(options.dflash ? "dflash_run" : "eagle3_run", options);
  const std::string output = config.run.output().directory();
  const ProgramResult trained = run_program("train -c " + config.path);
  ASSERT_EQ(trained.exit_code, 0) << trained.output;
  const nlohmann::json report = json_of(read_file(output + "/report.json"));
  EXPECT_GE(report["acceptance_length"].get<double>(), 1.0);
  EXPECT_TRUE(report.contains("acceptance_length_untrained"));
  EXPECT_TRUE(report.contains("acceptance_length_lookup"));
  EXPECT_TRUE(report.contains("settings"));
  EXPECT_THAT(read_file(output + "/report.html"),
              AllOf(HasSubstr("<svg"), Not(HasSubstr("http://"))));

  const std::string target = config.run.target().path();
  const std::string common = "evaluate --target " + target + " --prompts " +
                             config.run.data().held_out(0) + " --dtype f32 --new-tokens 12 --json";
  const nlohmann::json measured =
      json_of(run_program(common + " --drafter " + output + "/latest").output);
  EXPECT_TRUE(measured.contains("thinking"));  // dflash#133
  for (const std::string layout : {"specforge", "speculators"}) {
    const std::string exported = fresh_directory("exported") + "/" + layout;
    const ProgramResult result = run_program("export " + output + "/latest --target " + target +
                                             " --out " + exported + "// --to " + layout);
    ASSERT_EQ(result.exit_code, 0) << result.output;
    EXPECT_FALSE(system_files().exists(exported + "/.partial"));
    EXPECT_THAT(result.output, HasSubstr("vllm serve"));
    const auto weights = SafetensorsFile::open(system_files(), exported + "/model.safetensors");
    ASSERT_TRUE(weights.ok()) << weights.status().message();
    // speculators#903: a draft vocabulary says on which data it was counted.
    EXPECT_EQ(weights->metadata().contains(kDraftVocabularyDataHash), !options.dflash);
    const nlohmann::json again = json_of(run_program(common + " --drafter " + exported).output);
    EXPECT_EQ(measured["acceptance_length"], again["acceptance_length"]);
    EXPECT_EQ(measured["accepted_per_position"], again["accepted_per_position"]);
    EXPECT_EQ(measured["drafter"]["rounds"], again["drafter"]["rounds"]);
  }
  EXPECT_THAT(trained.output, EndsWith("report:  " + output + "/report.html\n"));
  const std::string ignored =
      "export " + output + "/latest --target " + target + " --out " + output + "/never ";
  if (options.dflash) {
    expect_one_error(run_program(ignored + "--with-embedding"), "--with-embedding");
    expect_one_error(run_program(ignored + "--draft-tokens 2"), "--draft-tokens");
  } else {
    expect_one_error(run_program(ignored + "--with-embedding --to speculators"),
                     "--with-embedding");
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, TrainedRun, testing::Values(false, true));

TEST(Program, AFinishedRunIsNotTrainedAgain) {
  TinyOptions options;
  options.epochs = 1;
  const TinyConfig config = tiny_config("finished", options);
  const ProgramResult first = run_program("train -c " + config.path);
  ASSERT_EQ(first.exit_code, 0) << first.output;
  EXPECT_THAT(first.output, AllOf(HasSubstr("no report: "), HasSubstr("drafter: "),
                                  Not(HasSubstr("report.html"))));
  const std::string masters = latest_masters(config.run);
  const ProgramResult again = run_program("train -c " + config.path);
  EXPECT_EQ(again.exit_code, 0) << again.output;
  EXPECT_EQ(masters, latest_masters(config.run));
}

// The printing library throws on a short write, and nobody caught it.
TEST(Program, AFullDiskUnderTheOutputEndsNoRun) {
  TinyOptions options;
  options.epochs = 1;
  const TinyConfig config = tiny_config("full_output", options);
  EXPECT_EQ(run_program("train -c " + config.path + " >/dev/full").exit_code, 0);
  EXPECT_TRUE(system_files().exists(config.run.output().directory() + "/latest"));
  const std::string inspected = config.run.data().train(0);
  EXPECT_EQ(run_program("inspect " + inspected + " >/dev/full").exit_code, 1);
  EXPECT_EQ(run_program("inspect " + inspected).exit_code, 0);
}

TEST(Program, BadConfigurationIsOneErrorThatNamesTheKey) {
  const TinyConfig config = tiny_config("bad_config");
  const std::string train = "train -c " + config.path + " ";
  expect_one_error(run_program(train + "train.stpes=3"), "did you mean 'train.steps'");
  expect_one_error(run_program(train + "train.epochs=many"), "train.epochs");
  expect_one_error(run_program(train + "placement.targets=[cuda:77]"), "cuda:77");
  expect_one_error(run_program(train + "placement.trainers=[gpu]"), "gpu");
  expect_one_error(run_program(train + "drafter.capture=[1,2,99]"), "99");
  expect_one_error(run_program(train + "target.weights=int4"), "target.weights");
  expect_one_error(run_program(train + "target.weights=int4"), "int8");
  expect_one_error(run_program(train + "data.token_budget=4"), "data.token_budget");
  expect_one_error(run_program(train + "features.bytes_max=16"), "features.bytes_max");
  expect_one_error(run_program(train + "data.train=[/nonexistent.safetensors]"),
                   "/nonexistent.safetensors");
  expect_one_error(run_program(train + "target.path=/nonexistent"), "/nonexistent");
  expect_one_error(run_program("train -c /nonexistent.yaml"), "/nonexistent.yaml");
  EXPECT_FALSE(system_files().exists(config.run.output().directory() + "/latest"));
}

/// Every file below a directory, with its size, but the lock, which names a process.
std::map<std::string, uintmax_t> files_below(const std::string& directory) {
  std::map<std::string, uintmax_t> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file() && entry.path().filename() != ".lock")
      files[entry.path().string()] = entry.file_size();
  }
  return files;
}

// The metrics and event files were once opened before the run could still be refused.
TEST(Program, ARefusedRunLeavesTheOutputDirectoryAsItWas) {
  TinyOptions options;
  options.epochs = 1;
  const TinyConfig config = tiny_config("refused_run", options);
  const std::string output = config.run.output().directory();
  const std::string train = "train -c " + config.path + " ";
  expect_one_error(run_program(train + "placement.targets=[cuda:77]"), "no device cuda:77");
  EXPECT_FALSE(system_files().exists(output));
  ASSERT_EQ(run_program(train).exit_code, 0);
  EXPECT_THAT(read_file(output + "/metrics.jsonl"), HasSubstr("\"kind\":\"event\""))
      << "what was said before the file was opened";
  const auto before = files_below(output);
  expect_one_error(run_program(train + "placement.targets=[cuda:77]"), "cuda:77");
  expect_one_error(run_program(train + "data.seed=43"), "give another output.directory");
  expect_one_error(run_program(train + "checkpoint.resume=false"), "checkpoint.resume");
  const Result<std::unique_ptr<FileLock>> lock = system_files().lock(output + "/.lock");
  ASSERT_TRUE(lock.ok());
  expect_one_error(run_program(train), "is in use");
  EXPECT_EQ(files_below(output), before);
}

TEST(Program, ADrafterIsOnlyUsedWithTheTargetThatItWasTrainedFor) {
  TinyOptions options;
  options.epochs = 1;
  const TinyConfig config = tiny_config("trained_for", options);
  const std::string output = config.run.output().directory();
  ASSERT_EQ(run_program("train -c " + config.path).exit_code, 0);
  const std::string target = config.run.target().path();
  const std::string exports = " --target " + target + " --out " + output + "/exported";
  const std::string evaluate = "evaluate --target " + target + " --prompts " +
                               config.run.data().train(0) + " --limit 1 --new-tokens 4 --drafter ";
  const std::string meant = "did you mean " + output + "/";
  expect_one_error(run_program("inspect " + output), meant);
  expect_one_error(run_program("export " + output + exports), meant);
  expect_one_error(run_program(evaluate + output), meant);
  EXPECT_THAT(run_program(evaluate + output + "/latest").output, Not(HasSubstr("other weights")));

  make_toy_model(8).write(target);  // the same shape
  const ProgramResult warned = run_program(evaluate + output + "/latest");
  EXPECT_EQ(warned.exit_code, 0) << warned.output;
  EXPECT_THAT(warned.output, HasSubstr("was trained for a target with other weights"));
  expect_one_error(run_program("export " + output + "/latest" + exports), "other weights");
  EXPECT_FALSE(system_files().exists(output + "/exported"));
}

TEST(Program, InspectSaysWhetherATargetCanBeTrainedFor) {
  const TinyConfig config = tiny_config("inspected");
  const std::string target = config.run.target().path();
  const std::string inspect = "inspect " + target;
  expect_one_error(run_program(inspect),
                   "can be trained for: no: cannot open " + target + "/tokenizer.json");
  write_file(target + "/tokenizer.json", "{}");
  const ProgramResult yes = run_program(inspect);
  EXPECT_EQ(yes.exit_code, 0);
  EXPECT_THAT(yes.output, EndsWith("can be trained for: yes\n"));
  ASSERT_TRUE(system_files().remove_all(target + "/model.safetensors").ok());
  expect_one_error(run_program(inspect), "can be trained for: no: ");
}

TEST(Program, InspectListsTheDevices) {
  const ProgramResult devices = run_program("inspect --devices");
  EXPECT_EQ(devices.exit_code, 0);
  EXPECT_THAT(devices.output, StartsWith("cpu:0: "));
  EXPECT_THAT(devices.output, HasSubstr("cuda:0: "));
  expect_misuse("inspect --devices a", "percheron inspect --help");
  expect_one_error(run_program("inspect"), "give a file, a directory, or --devices");
}

TEST(Program, DamagedFilesAreOneErrorThatNamesTheFile) {
  const TinyConfig config = tiny_config("damaged");
  const std::string target = config.run.target().path();
  const std::string weights = target + "/model.safetensors";
  const std::string whole = read_file(weights);
  const std::string train = "train -c " + config.path;
  write_file(weights, whole.substr(0, whole.size() / 2));
  expect_one_error(run_program(train), weights);
  write_file(weights, std::string(8, '\xff') + whole.substr(8));
  expect_one_error(run_program(train), weights);
  write_file(weights, whole);
  write_file(target + "/config.json",
             R"({"model_type": "gemma3", "architectures": ["Gemma3ForCausalLM"]})");
  expect_one_error(run_program(train), "gemma3");
  write_file(config.run.data().train(0), "no shard");
  expect_one_error(run_program("inspect " + config.run.data().train(0)),
                   config.run.data().train(0));
}

TEST(Program, CommandsOnWhatIsNotThereSaySo) {
  const TinyConfig config = tiny_config("absent");
  const std::string target = config.run.target().path();
  expect_one_error(run_program("inspect /nonexistent"), "/nonexistent");
  expect_one_error(run_program("generate --target " + target), "--prompt");
  // Before the target is loaded and a long answer lost.
  expect_one_error(run_program("generate --target none --prompt x --out /proc/x"),
                   "--out: cannot create /proc/x");
  expect_one_error(run_program("inspect " + testing::TempDir()), "has no config.json");
  expect_one_error(run_program("evaluate --target " + target + " --prompts " +
                               config.run.data().train(0) + " --drafter /nonexistent"),
                   "/nonexistent");
  expect_one_error(run_program("export /nonexistent --target " + target + " --out /tmp/never"),
                   "/nonexistent");
}

}  // namespace
}  // namespace percheron
