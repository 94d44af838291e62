// `percheron regenerate` on a tiny target with a real tokenizer and template.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/json.h"
#include "tests/e2e/program.h"
#include "tests/model/toy_model.h"

namespace percheron {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

constexpr const char* kTokenizer = "tests/golden_data/chat/qwen2.5";
constexpr int kVocabSize = 625;

/// A random target with the golden tokenizer. Many tokens end an answer: its words are random, too.
std::string chat_target() {
  Json stops = Json::array();
  for (int id = 0; id < kVocabSize; id += 12) stops.push_back(id);
  const std::string directory =
      make_toy_model(4, {{"vocab_size", kVocabSize}, {"eos_token_id", stops}})
          .write(fresh_directory("chat_target"));
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    std::filesystem::copy_file(std::string(kTokenizer) + "/" + name, directory + "/" + name);
  }
  return directory;
}

std::string chats(int rows) {
  std::string lines;
  for (int row = 0; row < rows; ++row) {
    Json messages = Json::array();
    for (int turn = 0; turn <= row % 3; ++turn) {
      const std::string question(static_cast<size_t>(3 + (row * 7 + turn) % 40), 'a');
      messages.push_back({{"role", "user"}, {"content", question}});
      messages.push_back({{"role", "assistant"}, {"content", "old"}});
    }
    lines += Json{{"id", row}, {"messages", messages}}.dump() + "\n";
  }
  const std::string path = testing::TempDir() + "regenerate_chats.jsonl";
  write_file(path, lines);
  return path;
}

class Regenerate : public testing::Test {
 protected:
  ProgramResult run(const std::string& options) {
    std::filesystem::remove(out_);
    return run_program("regenerate --target " + target_ + " --data " + data_ + " --out " + out_ +
                       " --new-tokens 24 --dtype f32 " + options);
  }

  std::string target_ = chat_target(), data_ = chats(24);
  std::string out_ = testing::TempDir() + "regenerated.jsonl";
};

TEST_F(Regenerate, BatchedAnswersAreThoseOfOneByOneOnAnyDevices) {
  for (const std::string sampling : {"", "--temperature 1 --seed 5 "}) {
    const ProgramResult alone = run(sampling + "--slots 1");
    ASSERT_EQ(alone.exit_code, 0) << alone.output;
    const std::string expected = read_file(out_);
    EXPECT_THAT(alone.output, AllOf(HasSubstr("24 rows read, 24 written"), HasSubstr("wrote ")));
    EXPECT_THAT(expected, Not(HasSubstr("\"old\"")));
    int later_turns = 0;
    std::istringstream lines(expected);
    int64_t id = 0;
    for (std::string line; std::getline(lines, line); ++id) {
      const Json row = parse_json(line, "row").value();
      EXPECT_EQ(row["id"], id) << "the order of the input";
      later_turns += row["messages"].size() > 2;
    }
    EXPECT_GT(later_turns, 3) << "answers end before the limit, so that turns follow";
    for (const std::string batched : {"--slots 64", "--slots 3 --devices cpu:0,cpu:1"}) {
      const ProgramResult together = run(sampling + batched);
      ASSERT_EQ(together.exit_code, 0) << together.output;
      EXPECT_EQ(read_file(out_), expected) << sampling << batched;
    }
  }
}

TEST_F(Regenerate, PromptsThatLeaveNoRoomAndBadDevicesAreSaid) {
  const ProgramResult narrow = run("--context 80");
  EXPECT_EQ(narrow.exit_code, 0) << narrow.output;
  EXPECT_THAT(narrow.output, AllOf(HasSubstr("prompt_too_long"), Not(HasSubstr(" 24 written"))));
  for (const auto& [options, part] : {std::pair{"--devices cpu:0,cpu:0", "cpu:0 is given twice"},
                                      std::pair{"--devices tpu:0", "tpu:0"},
                                      std::pair{"--context 100000", "has 512 positions"}}) {
    const ProgramResult refused = run(options);
    EXPECT_EQ(refused.exit_code, 1) << refused.output;
    EXPECT_THAT(refused.output, AllOf(HasSubstr("error: "), HasSubstr(part)));
    EXPECT_EQ(refused.output.find("error: "), refused.output.rfind("error: ")) << refused.output;
  }
}

TEST(Answer, IsNoVerbForPeople) {
  EXPECT_THAT(run_program("--help").output, Not(HasSubstr("answer   ")));
  EXPECT_THAT(run_program("answr").output, Not(HasSubstr("'answer'")));
}

}  // namespace
}  // namespace percheron
