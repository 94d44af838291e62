#include "tools/prompts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/data/shards.h"
#include "tests/tools/script.h"

namespace percheron {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Stands in for the tokenizer's process: an id for each way to ask, and refuses roles as it does.
constexpr const char* kTokenizer = R"(while read -r line; do
  case "$line" in
    *'"op":"info"'*) echo '{"vocab_size": 9}' ;;
    *'"role":null'*) echo '{"error": "unknown_role: None"}' ;;
    *'"op":"encode_prompt"'*'"turns"'*) echo '{"ids": [1, 2]}' ;;
    *'"op":"encode_prompt"'*) echo '{"ids": [3]}' ;;
    *) echo '{"error": "unknown op"}' ;;
  esac
done
)";

class JsonlPrompts : public testing::Test {
 protected:
  JsonlPrompts() {
    setenv("PERCHERON_PYTHON", write_script("fake_tokenizer.sh", kTokenizer).c_str(), 1);
  }
  ~JsonlPrompts() override { unsetenv("PERCHERON_PYTHON"); }

  Result<std::vector<std::vector<int32_t>>> read(const std::string& lines, int64_t limit = 0) {
    EXPECT_TRUE(write_text_atomically(system_files(), path_, lines).ok());
    LazyTokenizer tokenizer("model");
    return read_prompts(system_files(), path_, tokenizer, limit);
  }
  std::string error(const std::string& lines) {
    const auto prompts = read(lines);
    return prompts.ok() ? "" : prompts.status().message();
  }

  std::string path_ = testing::TempDir() + "prompts.jsonl";
};

TEST_F(JsonlPrompts, AreReadLineByLine) {
  const std::string lines = "{\"turns\": [\"a\"]}\r\n\n{\"prompt\": \"b\"}\n{\"prompt\": \"c\"}";
  const auto all = read(lines);
  ASSERT_TRUE(all.ok()) << all.status().message();
  EXPECT_THAT(*all, ElementsAre(ElementsAre(1, 2), ElementsAre(3), ElementsAre(3)));
  EXPECT_EQ(read(lines, 2)->size(), 2u);
}

TEST_F(JsonlPrompts, WhatIsNoPromptIsAnErrorWithItsLine) {
  const std::string good = "{\"prompt\": \"b\"}\n";
  EXPECT_THAT(error(good + "[1]\n"), HasSubstr(path_ + ":2: a row is a JSON object"));
  EXPECT_THAT(error(good + "\n{\"prompt\"\n"), HasSubstr(path_ + ":3"));
  // A role that is no text once ended the program.
  EXPECT_THAT(error(good + "{\"messages\": [{\"role\": null, \"content\": \"x\"}]}\n"),
              AllOf(HasSubstr(path_ + ":2"), HasSubstr("unknown_role")));
  EXPECT_THAT(error("\n"), HasSubstr("has no prompt"));
}

TEST(ShardPrompts, AreTheRowsUpToTheirAnswer) {
  const std::string path = testing::TempDir() + "prompts.safetensors";
  ASSERT_TRUE(ShardParts(rows_of_lengths({4, 6})).write(system_files(), path).ok());
  LazyTokenizer none("none");
  const auto prompts = read_prompts(system_files(), path, none, 0);
  ASSERT_TRUE(prompts.ok()) << prompts.status().message();
  EXPECT_THAT(*prompts, ElementsAre(ElementsAre(0, 1), ElementsAre(1, 2, 3)));
}

// dflash#133: an acceptance length of 25 % or 60 %, by the thinking mode that nobody had noted.
TEST(ShardPrompts, SayHowThoughtsWereRendered) {
  const std::string path = testing::TempDir() + "thoughts.safetensors";
  ShardParts parts(rows_of_lengths({4, 6}));
  const auto thinking = [&](const std::string& options) {
    parts.options = options;
    EXPECT_TRUE(parts.write(system_files(), path).ok());
    return thinking_of_prompts(system_files(), path).value();
  };
  EXPECT_EQ(thinking(R"({"thinking": "drop", "template_variables": {"enable_thinking": false}})"),
            R"(drop, template variables {"enable_thinking":false})");
  EXPECT_EQ(thinking(R"({"thinking": "supervise", "template_variables": {}})"),
            "supervise, template variables none");
  for (const char* unclear : {"", "[]", "{"}) EXPECT_THAT(thinking(unclear), HasSubstr("not said"));
  EXPECT_EQ(thinking_of_prompts(system_files(), "chats.jsonl").value(), "the template's default");
  EXPECT_FALSE(thinking_of_prompts(system_files(), "none.safetensors").ok());
}

}  // namespace
}  // namespace percheron
